#include "sim/present/plan/plan_head.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "shared/base/text.h"
#include "sim/present/plan/plan_inputs.h"
#include "sim/present/plan/plan_screen.h"
#include "sim/scenario/plan_fixed.h"

namespace cp::sim {
namespace {

// Returns the beginning of a text; it cuts no letter in two.
std::string beginning(const std::string& text, std::size_t width) {
  constexpr std::string_view kDots = "...";
  if (text.size() <= width) return text;
  std::size_t end = width > kDots.size() ? width - kDots.size() : 0;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return str(text.substr(0, end), kDots);
}

}  // namespace

PlanHead plan_head(const PlanQuestion& question, std::string whole) {
  PlanHead head;
  head.asked = workload_clauses(question);
  if (const std::string fixed = fixed_text(question.fixed); !fixed.empty())
    head.asked.insert(head.asked.begin() + 1, str("fixed ", fixed));
  head.asked.push_back(model_clause(question));
  head.on = cluster_clauses(question);
  head.on.push_back(str("software ", question.software.name));
  head.warnings = question.warnings;
  head.assumed = question.assumptions;
  head.whole = std::move(whole);
  return head;
}

std::string fitting(const std::vector<std::string>& items, std::string_view separator, std::size_t width) {
  if (std::string all = join(items, separator); all.size() <= width) return all;
  const auto more = [&](std::size_t left) { return left == 0 ? "" : str(separator, left, " more"); };
  const std::size_t room = width - std::min(width, more(items.size()).size());
  std::string text;
  std::size_t left = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i == 0) {
      text = beginning(items[i], room);
    } else if (text.size() + separator.size() + items[i].size() <= room) {
      text += str(separator, items[i]);
    } else {
      ++left;
    }
  }
  return text + more(left);
}

std::string head_text(const PlanHead& head, bool brief) {
  constexpr std::size_t kWidth = kScreenWidth - kScreenIndent;
  const std::string all = str("; all: ", head.whole);
  const std::string assumed =
      head.assumed.empty() ? "nothing" : fitting(head.assumed, "; ", kWidth - all.size());
  std::string warnings;
  for (const std::string& warning : head.warnings) warnings += titled_line("warning", warning);
  if (brief) return warnings;
  return str(warnings, titled_line("asked", fitting(head.asked, ", ", kWidth)),
             titled_line("on", fitting(head.on, ", ", kWidth)), titled_line("assumed", assumed + all));
}

}  // namespace cp::sim
