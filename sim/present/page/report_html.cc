#include "sim/present/page/report_html.h"

#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/cost/presets/embedded.h"
#include "sim/planner/search/time_part.h"
#include "sim/present/plan/answer_json.h"
#include "sim/present/plan/headline.h"

namespace cp::sim {

// The files page.html, style.css and *.js of this folder. cmake/CpEmbed.cmake writes the definition.
std::span<const EmbeddedText> embedded_report();

namespace {

std::string_view part(std::string_view name) {
  for (const EmbeddedText& text : embedded_report()) {
    if (text.name == name) return text.text;
  }
  CP_INVARIANT(false, "no part of the report is called ", name);
}

std::string escaped_for_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// Escapes '<', which JSON has only in strings. Without it, nothing can end or nest the script element.
std::string escaped_for_script(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

// ---- colours: names of custom properties of style.css ----

std::string_view colour_of(TimePart part) {
  switch (part) {
    case TimePart::attention:
      return "attention";
    case TimePart::products:
      return "product";
    case TimePart::other_kernels:
      return "kernel";
    case TimePart::bubble:
      return "bubble";
    case TimePart::exposed_tp:
    case TimePart::exposed_cp:
    case TimePart::exposed_fsdp:
    case TimePart::exposed_dp:
    case TimePart::exposed_ep:
    case TimePart::exposed_pp:
      return name(*axis_of(part));
    case TimePart::exposed_offload:
      return "offload";
    case TimePart::host:
    case TimePart::host_between_steps:
      return "host";
    case TimePart::prompts_of_others:
      return "other";
  }
  return "other";
}

// Each kind has the colour of its name.
std::string_view colour_of(SpanKind kind) { return name(kind); }

template <class Enums>
nlohmann::ordered_json colours_of(const Enums& all) {
  nlohmann::ordered_json colours;
  for (const auto each : all) colours[std::string(name(each))] = colour_of(each);
  return colours;
}

// What the page knows of parts and kinds: the colour of each by its name, in the order of the legends.
std::string colours() {
  return str("const partColours = ", colours_of(all_time_parts()).dump(),
             ", kindColours = ", colours_of(all_span_kinds()).dump(), ";\n");
}

std::string script() {
  std::string out = colours();
  for (const char* name : {"base", "ranking", "scatter", "bars", "timeline", "sections"}) out += part(name);
  return out;
}

std::string value_of(std::string_view field, const PlanAnswer& answer) {
  if (field == "headline") return escaped_for_html(headline(answer));
  if (field == "style") return std::string(part("style"));
  if (field == "script") return script();
  if (field == "data") return escaped_for_script(to_json(answer, -1));
  CP_INVARIANT(false, "page.html has the unknown field ", field);
}

}  // namespace

// The template is read once from front to end, so what is filled in is never searched for fields.
std::string report_html(const PlanAnswer& answer) {
  std::string_view rest = part("page");
  std::string out;
  for (auto open = rest.find("{{"); open != std::string_view::npos; open = rest.find("{{")) {
    const auto close = rest.find("}}", open);
    out += rest.substr(0, open);
    out += value_of(rest.substr(open + 2, close - open - 2), answer);
    rest.remove_prefix(close + 2);
  }
  out += rest;
  return out;
}

}  // namespace cp::sim
