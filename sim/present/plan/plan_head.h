// The head of an answer: what was asked, on what machines, and what was assumed, in one line each. It is for
// answers that are asked for again and again.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "sim/planner/search/question.h"

namespace cp::sim {

// The items of the three lines, the most telling first, and the warnings that are to be read before them.
struct PlanHead {
  std::vector<std::string> warnings;
  std::vector<std::string> asked, on, assumed;
  std::string whole;  // says where all items can be read: "the command under next"
};
PlanHead plan_head(const sim::PlanQuestion& question, std::string whole);

// The whole warnings, and three lines of at most kScreenWidth columns. Items for which there is no room are
// counted. If `brief` is true, only the warnings, which nobody may miss.
std::string head_text(const PlanHead& head, bool brief = false);

// Joins as many items as `width` columns have room for, but at least a part of the first one, and says how
// many more there are.
std::string fitting(const std::vector<std::string>& items, std::string_view separator, std::size_t width);

}  // namespace cp::sim
