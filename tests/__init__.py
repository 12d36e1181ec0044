from tests import checks as checks  # which pyproject.toml names
