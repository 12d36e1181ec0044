"""The paper's text experiments in miniature, on one page: a section for each of its tables and figures."""
