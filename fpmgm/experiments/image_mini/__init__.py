"""The paper's image experiments in miniature, on one page: a section for each of its tables."""
