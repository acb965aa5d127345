"""The pages: what a person sees, over the queries of the store and the objectives of the alerts."""
