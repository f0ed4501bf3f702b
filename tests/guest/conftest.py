from tests.netns.conftest import build, profile_file  # noqa: F401
