// A PlanAnswer as a page: what `cpsim plan --report FILE.html` writes.
//
// One file that loads nothing, not even when online: style, scripts and data are inside, and its
// Content-Security-Policy forbids the rest. The data is to_json() in the element <script
// type="application/json" id="answer">. The charts are SVG, and a canvas for the timeline, drawn by the
// scripts of this folder, which are compiled into the library.
#pragma once

#include <string>

#include "sim/planner/search/answer.h"

namespace cp::sim {

std::string report_html(const PlanAnswer& answer);

}  // namespace cp::sim
