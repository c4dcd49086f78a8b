// A PlanAnswer as text: the first screen of `cpsim plan`. From top to bottom it has:
//
//   the answer in one sentence; warnings
//   what was asked, as it was understood, with what was assumed
//   the best layouts; of the first one: where its step goes, its memory and what is left of it
//   the best of each class and the baseline, and what sets them apart
//   what became of all layouts; the nearest measurement; what to type next
#pragma once

#include <string>
#include <string_view>

#include "sim/planner/search/answer.h"

namespace cp::sim {

// The screen. If `brief` is true it has only the sentence, the best layouts, what is left of the memory, and
// warnings; this is for those who ask again and again.
std::string plan_screen(const sim::PlanAnswer& answer, bool brief = false);

// ---- parts of it that other texts have, too ----

// The terms of the memory in GiB, without the context: "parameters 1.9, activations 51.9, working 1.4,
// attention 0.6, slack 1.1; at another time logits 1.0".
std::string memory_terms(const Memory& memory);

// What is left of the memory: "20.2 GiB of 78.0; 53.0 to 58.5 GiB needed, as far off as 7 measured runs:
// likely to fit".
std::string memory_left(const sim::Candidate& candidate, const sim::MemoryWidth& width);

// Where the time of a step goes, the largest part first: "attention 1.40 s (44 %), products 0.98 s (31 %),
// ...". Parts that take less than a hundredth are left out.
std::string time_parts(const sim::Candidate& candidate);

// Breaks the text into lines of at most `width` columns, between words but not before a %. All lines but the
// first begin with `indent` spaces.
std::string wrapped(const std::string& text, std::size_t width, std::size_t indent);

// A line of a screen: the title, and the text from column kScreenIndent on, wrapped at kScreenWidth. Both are
// chosen: the titles are shorter than 12 letters, and 110 columns fit on most screens.
inline constexpr std::size_t kScreenWidth = 110, kScreenIndent = 12;
std::string titled_line(std::string_view title, const std::string& text);

}  // namespace cp::sim
