// A PlanAnswer as a page: the file that `cpsim plan --report FILE.html` writes.
//
// The page is one file that loads nothing, not even when online. Style, scripts and data are inside, and its
// Content-Security-Policy forbids anything else. The data is to_json() in the element <script
// type="application/json" id="answer">. The charts are SVG, and the timeline is a canvas. The scripts of this
// folder draw them; they are compiled into the library.
#pragma once

#include <string>

#include "sim/planner/search/answer.h"

namespace cp::sim {

std::string report_html(const PlanAnswer& answer);

}  // namespace cp::sim
