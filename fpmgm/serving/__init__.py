"""Serving: an endpoint in the form of OpenAI's completions, around the sampler.

This package needs fastapi and uvicorn (the extra `serve`). Nothing else in fpmgm imports it, but the command `serve`.
"""
