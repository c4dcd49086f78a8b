// A PlanAnswer as text: the first screen of `cpsim plan`.
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

// `brief`: the sentence, the best layouts, what is left of the memory, and warnings; for who asks again and
// again.
std::string plan_screen(const sim::PlanAnswer& answer, bool brief = false);

// ---- parts of it that other texts have, too ----

// "parameters 1.9, activations 51.9, working 1.4, attention 0.6, slack 1.1; at another time logits 1.0", in
// GiB; without the context.
std::string memory_terms(const Memory& memory);

// "20.2 GiB of 78.0; 53.0 to 58.5 GiB needed, as far off as 7 measured runs: likely to fit".
std::string memory_left(const sim::Candidate& candidate, const sim::MemoryWidth& width);

// "attention 1.40 s (44 %), products 0.98 s (31 %), ...": the largest first, without what takes less than a
// hundredth.
std::string time_parts(const sim::Candidate& candidate);

// The text with line breaks between words, at most `width` columns, none before a %; lines but the first
// begin with `indent` spaces.
std::string wrapped(const std::string& text, std::size_t width, std::size_t indent);

// A line of a screen: the title, and the text from the column of kScreenIndent on, wrapped at kScreenWidth.
inline constexpr std::size_t kScreenWidth = 110, kScreenIndent = 12;
std::string titled_line(std::string_view title, const std::string& text);

}  // namespace cp::sim
