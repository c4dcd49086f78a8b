// What was asked, on what, and what was assumed, in one line each: the head of answers that come again and
// again.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "sim/planner/search/question.h"

namespace cp::sim {

// Items of the three lines, the most telling first, and what is to be read before them.
struct PlanHead {
  std::vector<std::string> warnings;
  std::vector<std::string> asked, on, assumed;
  std::string whole;  // where all of it can be read: "the command under next"
};
PlanHead plan_head(const sim::PlanQuestion& question, std::string whole);

// The warnings, whole, and three lines of at most kScreenWidth columns; items for which there is no room are
// counted. `brief`: the warnings alone, which nobody may miss.
std::string head_text(const PlanHead& head, bool brief = false);

// As many items as `width` columns have room for, at least a part of the first, and how many more there are.
std::string fitting(const std::vector<std::string>& items, std::string_view separator, std::size_t width);

}  // namespace cp::sim
