#include "sim/present/plan/plan_head.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "shared/base/text.h"
#include "sim/present/plan/plan_inputs.h"
#include "sim/present/plan/plan_screen.h"

namespace cp::sim {
namespace {

// Numbers have commas without a space behind them.
void add_clauses(std::vector<std::string>& items, std::string_view text) {
  constexpr std::string_view kBetween = ", ";
  for (std::size_t end = text.find(kBetween); end != std::string_view::npos; end = text.find(kBetween)) {
    items.emplace_back(text.substr(0, end));
    text.remove_prefix(end + kBetween.size());
  }
  items.emplace_back(text);
}

// Without what follows the number of parameters.
std::string model_in_short(const std::string& text) {
  constexpr std::string_view kLast = " parameters";
  const std::size_t at = text.find(kLast);
  return at == std::string::npos ? text : text.substr(0, at + kLast.size());
}

// The beginning of a text; no letter is cut in two.
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
  std::string model, fixed;
  for (const auto& [title, text] : plan_inputs(question)) {
    if (title == "model") model = model_in_short(text);
    if (title == "workload") add_clauses(head.asked, text);
    if (title == "fixed") fixed = str("fixed ", text);
    if (title == "cluster") add_clauses(head.on, text);
  }
  // Answers begin with the model's name, and what a step's tokens add up to is no news.
  std::string& workload = head.asked.front();
  workload = workload.substr(0, workload.find(" ("));
  if (!fixed.empty()) head.asked.insert(head.asked.begin() + 1, fixed);
  head.asked.push_back(model);
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
