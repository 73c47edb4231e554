"""Write the tables of `docs/maintainers/claims.md`, for the frameworks that are installed here."""

from tpunb.machine.framework import installed_frameworks
from unproven import PAGE, reports, section, with_section

page = PAGE.read_text(encoding="utf-8")
for framework in sorted(installed_frameworks()):
    page = with_section(page, framework, section(framework, reports()))
PAGE.write_text(page, encoding="utf-8")
