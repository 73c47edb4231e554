// The live topology: the drawing of topology_svg.py.

import { viewOf } from "./views.js";

export default viewOf("topology", "TPU topology");
