"""Which attributes may hold what people wrote: prompts, answers, queries, addresses with what was asked. They are never kept.

It is asked of rules when they are read, so that a rule cannot name one; other attributes are not looked at.
"""

from __future__ import annotations

import re

# Of OpenTelemetry's semantic conventions, of OpenInference, OpenLLMetry, LangSmith and the Vercel AI SDK; * is anything.
_CONTENT = """
db.statement db.query.text db.query.summary db.query.parameter.* db.operation.parameter.* db.mongodb.* db.response.returned_rows.*
url.full url.original url.path url.query url.fragment http.url http.target http.request.header.* http.response.header.* http.request.body*
http.response.body*
gen_ai.prompt gen_ai.prompt.* gen_ai.completion gen_ai.completion.* gen_ai.input.* gen_ai.output.messages gen_ai.output.messages.*
gen_ai.system_instructions gen_ai.tool.call.arguments gen_ai.tool.call.result gen_ai.tool.definitions gen_ai.retrieval.query*
gen_ai.retrieval.documents* gen_ai.evaluation.explanation
input.* output.* llm.input_messages* llm.output_messages* llm.prompts* llm.completions* llm.prompt_template* llm.invocation_parameters
llm.function_call retrieval.documents* reranker.query reranker.input_documents* reranker.output_documents* embedding.text
embedding.embeddings* embedding.vector tool.parameters tool_call.* document.* message.*
traceloop.entity.input traceloop.entity.output traceloop.prompt.*
ai.prompt ai.prompt.* ai.response.text ai.response.object ai.response.toolCalls ai.toolCall.args ai.toolCall.result ai.value* ai.result.*
ai.embedding* ai.values*
exception.message exception.stacktrace messaging.message.body* process.command process.command_args process.command_line
enduser.* user.* session.id
"""
_PATTERN = re.compile("|".join(re.escape(each).replace(r"\*", ".*") for each in _CONTENT.split()))


def holds_content(attribute: str) -> bool:
    """Say whether *attribute* may hold what people wrote.

    >>> holds_content("db.query.text"), holds_content("db.operation.name")
    (True, False)
    """
    return _PATTERN.fullmatch(attribute) is not None
