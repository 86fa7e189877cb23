"""One HTML page about one or several runs, or measured networks, that opens offline."""

from dyart.report.page.write import write_page

__all__ = ["write_page"]
