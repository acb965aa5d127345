"""guidellm, with each of its requests as a request of Stagelens; its arguments are those of the command `guidellm`."""

from guidellm.__main__ import cli
from guidellm.backends.openai.http import OpenAIHTTPBackend

import stagelens

# Here and not below: guidellm starts its workers with this module.
OpenAIHTTPBackend.resolve = stagelens.request("completion")(OpenAIHTTPBackend.resolve)

if __name__ == "__main__":
    cli()
