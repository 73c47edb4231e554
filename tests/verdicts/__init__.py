import os

os.environ["TPUNB_VERDICTS"] = "off"  # the comparison needs real compilations, not kept verdicts
