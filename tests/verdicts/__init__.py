import os

os.environ["TPUNB_VERDICTS"] = "off"  # what is compared has to be compiled
