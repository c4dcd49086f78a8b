// An answer of `cpsim plan` as it might be, made by hand: Llama-3.1-8B on 16 H100.
#pragma once

#include <string_view>

#include "sim/planner/search/answer.h"

namespace cp::testing {

// Stands in its warnings, assumptions, next command and in a label of its timeline: what ends a script,
// quotes, markup, Unicode.
inline constexpr std::string_view kAwkward =
    "a </script><script>throw 1</script> <!-- \"quoted\", 'so' & \\n – π日本 {{data}}";

// Two dozen layouts, four of them with pipeline stages, one rank that two share; a timeline of two ranks and
// some thousand spans; a class of which nothing fits.
sim::PlanAnswer example_answer();

}  // namespace cp::testing
