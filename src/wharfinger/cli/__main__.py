"""``python -m wharfinger.cli`` is ``wharf``."""

from wharfinger.cli.main import main

main()
