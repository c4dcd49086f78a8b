#include "sim/present/page/report_html.h"

#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "shared/base/error.h"
#include "sim/cost/presets/embedded.h"
#include "sim/present/plan/answer_json.h"
#include "sim/present/plan/headline.h"

namespace cp::sim {

// page.html, style.css and *.js of this folder; cmake/CpEmbed.cmake writes the definition.
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

// In JSON '<' stands in strings alone, and without it nothing can end or nest the script element.
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

std::string script() {
  std::string out;
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

// One pass over the template: what is filled in is never searched for fields.
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
