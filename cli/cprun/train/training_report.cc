#include "cli/cprun/train/training_report.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shared/base/error.h"
#include "sim/base/number_text.h"

namespace cp::cli {
namespace {

using Kind = sim::TrainingEvent::Kind;

// Chosen: a log of a day has some thousand lines, and a terminal that changes five times a second moves.
constexpr std::chrono::seconds kSaid{10};
constexpr std::chrono::milliseconds kShown{200};
constexpr char kWipe[] = "\r\x1b[K";  // ECMA-48: back to the first column, erase to the end of the line

const char* name(Kind kind) {
  switch (kind) {
    case Kind::begun:
      return "begun";
    case Kind::step:
      return "step";
    case Kind::evaluated:
      return "evaluated";
    case Kind::saved:
      return "saved";
    case Kind::refused:
      return "refused";
    case Kind::stopped:
      return "stopped";
    case Kind::done:
      break;
  }
  return "done";
}

}  // namespace

TrainingReport::TrainingReport(const sim::TrainJob& job, ReportOptions options)
    : job_(job), options_(std::move(options)) {
  curves_.title = str(job.request.model.name, ", ", to_string(job.request.layout));
  if (!options_.log.empty()) {
    log_.open(options_.log, std::ios::app);
    if (!log_)
      throw InvalidInput(
          str("--log ", options_.log, " cannot be written; use a file in a folder that is there"));
  }
  if (!options_.page.empty()) draw();
  if (options_.terminal) terminal_ = std::fopen("/dev/tty", "w");
}

TrainingReport::~TrainingReport() {
  show("");
  if (terminal_ != nullptr) std::fclose(terminal_);
}

void TrainingReport::say(const std::string& line) {
  show("");
  fmt::print("{}\n", line);
  std::fflush(stdout);
  said_ = Clock::now();
}

void TrainingReport::show(const std::string& line) {
  if (terminal_ == nullptr) return;
  fmt::print(terminal_, "{}{}", kWipe, line);
  std::fflush(terminal_);
}

std::string TrainingReport::words_of_step(const sim::TrainingEvent& event) const {
  return fmt::format(
      "step {} of {}: loss {:.4f}, gradient norm {:.3g}, learning rate {:.3g}, {:.0f} tokens/s", event.step,
      job_.steps, event.loss, event.gradient_norm, event.learning_rate, event.tokens_per_second);
}

void TrainingReport::log(const sim::TrainingEvent& event) {
  if (!log_.is_open()) return;
  nlohmann::ordered_json json = {{"event", name(event.kind)}, {"step", event.step}};
  if (event.kind == Kind::step || event.kind == Kind::evaluated) json["loss"] = event.loss;
  if (event.kind == Kind::step) {
    json["gradient_norm"] = event.gradient_norm, json["learning_rate"] = event.learning_rate;
    json["tokens_per_second"] = event.tokens_per_second;
  }
  if (event.seconds > 0) json["seconds"] = event.seconds;
  if (!event.text.empty()) json["text"] = event.text;
  log_ << json.dump() << std::endl;  // whole lines, whenever the process ends
}

void TrainingReport::draw() {
  std::ofstream page(options_.page, std::ios::binary);
  page << sim::training_page(curves_);
  page.close();
  if (!page)
    throw InvalidInput(
        str("--page ", options_.page, " cannot be written; use a file in a folder that is there"));
}

void TrainingReport::tell(const sim::TrainingEvent& event) {
  log(event);
  switch (event.kind) {
    case Kind::begun:
      curves_.begun_with = event.text;
      say(event.step == 0 ? str("begins with ", event.text)
                          : str("goes on behind step ", event.step, " with ", event.text));
      break;
    case Kind::step: {
      curves_.loss.push_back({event.step, event.loss});
      curves_.gradient_norm.push_back({event.step, event.gradient_norm});
      curves_.learning_rate.push_back({event.step, event.learning_rate});
      curves_.tokens_per_second.push_back({event.step, event.tokens_per_second});
      // The first step, each tenth of all, and whenever nothing was said for long.
      const std::int64_t tenth = std::max<std::int64_t>(1, job_.steps / 10);
      const auto now = Clock::now();
      if (curves_.loss.size() == 1 || event.step % tenth == 0 || event.step == job_.steps ||
          now - said_ >= kSaid) {
        say(words_of_step(event));
      } else if (now - shown_ >= kShown) {
        show(words_of_step(event)), shown_ = now;
      }
      break;
    }
    case Kind::evaluated:
      curves_.evaluation.push_back({event.step, event.loss});
      say(fmt::format("step {}: loss of the evaluation {:.4f}", event.step, event.loss));
      if (!options_.page.empty()) draw();
      break;
    case Kind::saved:
      say(str("step ", event.step, ": saved in ", event.text, " within ", sim::human_seconds(event.seconds)));
      break;
    case Kind::refused:
      say(str("not gone on from: ", event.text));
      break;
    case Kind::stopped:
      say(str("stopped behind step ", event.step, " of ", job_.steps,
              job_.save.empty() ? "; it cannot be gone on from, since no folder to save in was named (--save)"
                                : "; the same command goes on there"));
      break;
    case Kind::done:
      say(fmt::format("done: {} steps", event.step));
      break;
  }
  if (!options_.page.empty() && (event.kind == Kind::done || event.kind == Kind::stopped)) draw();
}

}  // namespace cp::cli
