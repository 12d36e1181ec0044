"""The page of `fpmgm demo`: models at work in a browser, step by step.

What is computed and drawn (`offers`, `limits`, `steps`, `frames`, `tokens`, `cells`, `charts`, `measured`) knows
nothing of gradio. The tabs and `page` build the page from it.
"""
