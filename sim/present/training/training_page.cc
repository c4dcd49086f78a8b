#include "sim/present/training/training_page.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "shared/base/index.h"

namespace cp::sim {
namespace {

// In units of the picture.
constexpr double kWidth = 760, kHeight = 240, kLeft = 64, kBottom = 28, kTop = 8, kRight = 8;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

// Round numbers that part the range into about four.
std::vector<double> ticks(double least, double most) {
  const double range = most > least ? most - least : std::max(1.0, std::abs(most));
  double each = std::pow(10, std::floor(std::log10(range / 4)));
  for (const double factor : {2.0, 5.0, 10.0}) {
    if (range / each > 6) each *= factor == 2.0 ? 2 : factor == 5.0 ? 2.5 : 2;
  }
  std::vector<double> all;
  for (double tick = std::ceil(least / each) * each; tick <= most + each * 1e-9; tick += each)
    all.push_back(tick);
  return all;
}

struct Range {
  double least = HUGE_VAL, most = -HUGE_VAL;
  void add(double value) {
    if (std::isfinite(value)) least = std::min(least, value), most = std::max(most, value);
  }
};

class Chart {
 public:
  Chart(std::string title, std::string format) : title_(std::move(title)), format_(std::move(format)) {}

  void add(const std::vector<TrainingPoint>& points, const char* style, const char* name) {
    for (const TrainingPoint& point : points)
      steps_.add(static_cast<double>(point.step)), values_.add(point.value);
    lines_.push_back({&points, style, name});
  }

  std::string text() const {
    if (!(values_.least <= values_.most)) return "";
    std::string svg = fmt::format("<h2>{}</h2>\n<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                                  title_, kWidth, kHeight, title_);
    for (const double tick : ticks(values_.least, values_.most)) {
      svg += fmt::format(
          "<path class=\"grid\" d=\"M{} {:.1f}H{}\"/><text x=\"{}\" y=\"{:.1f}\" class=\"y\">{}</text>\n",
          kLeft, y(tick), kWidth - kRight, kLeft - 6, y(tick) + 4, fmt::format(fmt::runtime(format_), tick));
    }
    for (const double tick : ticks(steps_.least, steps_.most)) {
      if (tick != std::floor(tick)) continue;
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" class=\"x\">{}</text>\n", x(tick), kHeight - 8,
                         static_cast<std::int64_t>(tick));
    }
    for (const Line& line : lines_) svg += line_of(line);
    return svg + "</svg>\n";
  }

 private:
  struct Line {
    const std::vector<TrainingPoint>* points;
    const char *style, *name;
  };

  double x(double step) const {
    const double range = std::max(1.0, steps_.most - steps_.least);
    return kLeft + (step - steps_.least) / range * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    const double range = values_.most > values_.least ? values_.most - values_.least : 1;
    return kHeight - kBottom - (value - values_.least) / range * (kHeight - kTop - kBottom);
  }

  // A picture has no more places than this: of more points each place shows the mean.
  std::string line_of(const Line& line) const {
    constexpr std::int64_t kMostPoints = 700;
    const std::int64_t count = std::ssize(*line.points),
                       each = std::max<std::int64_t>(1, (count + kMostPoints - 1) / kMostPoints);
    std::string path, dots;
    for (std::int64_t i = 0; i < count; i += each) {
      const std::int64_t end = std::min(count, i + each);
      double sum = 0;
      for (std::int64_t j = i; j < end; ++j) sum += (*line.points)[idx(j)].value;
      const double at = x(static_cast<double>((*line.points)[idx(i)].step)),
                   height = y(sum / static_cast<double>(end - i));
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", at, height);
      if (count < 40)
        dots += fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\"/>", line.style, at,
                            height);
    }
    return fmt::format("<path class=\"line {}\" d=\"{}\"><title>{}</title></path>{}\n", line.style, path,
                       line.name, dots);
  }

  std::string title_, format_;
  Range steps_, values_;
  std::vector<Line> lines_;
};

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1d2429; --soft: #8a949c; --grid: #dde2e6; --one: #1f6feb; --two: #d1603d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #8f9aa3; --grid: #333b42; --one: #6aa6ff; --two: #f08a66; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 800px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1rem; margin: 1.5rem 0 .25rem; } p { color: var(--soft); margin: .2rem 0; }
svg { width: 100%; height: auto; } text { font-size: 11px; fill: var(--soft); } .y { text-anchor: end; } .x { text-anchor: middle; }
.grid { stroke: var(--grid); } .line { fill: none; stroke-width: 1.5; } path.one { stroke: var(--one); } path.two { stroke: var(--two); }
circle.one { fill: var(--one); } circle.two { fill: var(--two); }
)";

}  // namespace

std::string training_page(const TrainingCurves& curves) {
  Chart loss("Loss (of evaluations in the second colour)", "{:.3g}"),
      norm("Norm of the gradients, before clipping", "{:.3g}"), rate("Learning rate", "{:.2g}"),
      speed("Tokens in a second", "{:.4g}");
  loss.add(curves.loss, "one", "of steps"), loss.add(curves.evaluation, "two", "of evaluations");
  norm.add(curves.gradient_norm, "one", "norm"), rate.add(curves.learning_rate, "one", "rate");
  speed.add(curves.tokens_per_second, "one", "tokens");
  std::string text = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width\">\n<title>{0}</title><style>{1}</style></head><body>\n<h1>{0}</"
      "h1>\n<p>{2}</p>\n",
      escaped(curves.title), kStyle, escaped(curves.begun_with));
  if (!curves.loss.empty()) {
    text += fmt::format("<p>{} steps; the last loss is {:.4f}{}</p>\n", curves.loss.back().step,
                        curves.loss.back().value,
                        curves.evaluation.empty()
                            ? ""
                            : fmt::format(", of the evaluation {:.4f}", curves.evaluation.back().value));
  }
  for (const Chart* chart : {&loss, &norm, &rate, &speed}) text += chart->text();
  return text + "</body></html>\n";
}

}  // namespace cp::sim
