#include "sim/scenario/training_run.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/training/first_holder.h"
#include "shared/training/initial_parameters.h"

namespace cp::sim {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Behind each field of a training that ranks compare: no path has it.
constexpr std::string_view kFieldEnd("\0", 1);

std::vector<std::string_view> fields_of(std::string_view text) {
  std::vector<std::string_view> fields;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(kFieldEnd, begin), text.size());
    fields.push_back(text.substr(begin, end - begin));
    begin = end + kFieldEnd.size();
  }
  return fields;
}

// What a rank says behind each step.
struct StepWord {
  double loss = 0, gradient_norm = 0;
  std::int64_t stops = 0;
};

class TrainingRun {
 public:
  TrainingRun(const TrainJob& job, Device& device, const TrainingOptions& options)
      : job_(job),
        options_(options),
        device_(device),
        rank_(device.rank()),
        names_(job.save.empty() && job.init_from.empty() ? DiskNames("", {}, {})
                                                         : DiskNames::of(job.family, job.request.model)) {}

  TrainingResult run() {
    agree();
    begin();
    const std::int64_t first = result_.step;
    while (result_.step < job_.steps && !result_.stopped) step();
    // An evaluation of the end, and its checkpoint, unless they are there already.
    if (!result_.stopped && (evaluated_ != result_.step || first == job_.steps)) evaluate();
    if (result_.step > first && saved_ != result_.step) save();
    tell({result_.stopped ? TrainingEvent::Kind::stopped : TrainingEvent::Kind::done, result_.step,
          last_loss(), 0, 0, 0, 0, ""});
    return std::move(result_);
  }

 private:
  using Kind = TrainingEvent::Kind;

  void tell(const TrainingEvent& event) const {
    if (rank_ == 0 && options_.on_event) options_.on_event(event);
  }
  double last_loss() const { return result_.losses.empty() ? 0 : result_.losses.back(); }

  // Ranks of other machines may have other files, flags and defaults.
  void agree() {
    const std::vector<std::string> all = options_.gather("training", join(job_.described(), kFieldEnd));
    const std::vector<std::string_view> of_first = fields_of(all.front());
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const std::vector<std::string_view> fields = fields_of(all[rank]);
      CP_INVARIANT(fields.size() == of_first.size(), "rank ", rank, " has ", fields.size(), " fields");
      std::vector<std::string> differences;
      for (std::size_t field = 0; field < fields.size(); ++field) {
        if (fields[field] != of_first[field])
          differences.push_back(str(fields[field], ", where rank 0 has ", of_first[field]));
      }
      if (!differences.empty())
        throw InvalidInput(str("ranks train differently: rank ", rank, " has ", join(differences, "; "),
                               "; give all machines the same scenario, flags and files"));
    }
  }

  // ---- with what it begins ----

  void begin() {
    checkpoint_ = newest_checkpoint();
    StepBuffers::Values values = InitialParameters(job_.request.model, job_.seed);
    std::string with = str("parameters drawn from seed ", job_.seed);
    if (checkpoint_) {
      result_.step = saved_ = checkpoint_->facts().step;
      values = [this](int role, const TensorRun& run, std::span<double> to) {
        checkpoint_->read(role, run, to);
      };
      with = str(checkpoint_->folder(), ", written by ", checkpoint_->facts().layout);
    } else if (!job_.init_from.empty()) {
      pretrained_.emplace(job_.init_from, names_);
      pretrained_->require();
      values = [this](int role, const TensorRun& run, std::span<double> to) {
        pretrained_->read(role, run, to);
      };
      with = job_.init_from;
    }
    trainer_.emplace(job_.request, device_, values, options_.before_use, options_.memory);
    tell({Kind::begun, result_.step, 0, 0, 0, 0, 0, with});
  }

  // The newest checkpoint that all ranks find whole, each a part of it. What rank 0 sees counts: others may
  // see a folder that is removed right now.
  std::optional<CheckpointReader> newest_checkpoint() {
    if (job_.save.empty()) return std::nullopt;
    const std::vector<std::string> seen =
        options_.gather("checkpoints", rank_ == 0 ? join(checkpoints_in(job_.save), " ") : "");
    if (seen.front().empty()) return std::nullopt;
    for (const std::string_view name : split(seen.front(), ' ')) {
      const std::string folder = str(job_.save, "/", name);
      std::optional<CheckpointReader> reader;
      std::string finding;
      try {
        reader.emplace(folder, names_);
        finding = job_.differs(reader->facts());
        if (!finding.empty())
          finding = str(folder, ": ", finding, "; use another folder to save in");
        else
          reader->require(), finding = reader->torn(rank_, job_.world());
      } catch (const InvalidInput& error) {
        finding = error.what();
      }
      std::vector<std::string> findings = options_.gather("whole", finding);
      const auto wrong = std::find_if(findings.begin(), findings.end(),
                                      [](const std::string& text) { return !text.empty(); });
      if (wrong == findings.end()) return reader;
      tell({Kind::refused, 0, 0, 0, 0, 0, 0, *wrong});
    }
    throw InvalidInput(
        str("none of the checkpoints in ", job_.save,
            " can be gone on from; the reasons stand above. To begin anew, use another folder"));
  }

  // ---- steps ----

  StepBatch batch_of(const TokenBatch& batch, std::int64_t step) const {
    StepBatch of_step;
    of_step.tokens = batch.tokens, of_step.labels = batch.labels;
    of_step.learning_rate = job_.learning_rate.at(step), of_step.step = step;
    of_step.correction_rate = job_.correction_rate;
    of_step.seed = job_.seed;
    return of_step;
  }

  // Of all ranks together; the sum is in the order of ranks, so that it is the same in every run.
  StepWord gather(const StepSums& sums) {
    StepWord own{sums.loss, sums.gradient_norm, options_.stops && options_.stops() ? 1 : 0};
    StepWord all;
    const auto* const bytes = reinterpret_cast<const char*>(&own);
    for (const std::string& word : options_.gather("step", std::string(bytes, sizeof own))) {
      CP_INVARIANT(word.size() == sizeof own, "a rank said ", word.size(), " bytes behind a step");
      StepWord other;
      std::memcpy(&other, word.data(), sizeof other);
      all.loss += other.loss, all.stops += other.stops;
      all.gradient_norm = std::max(all.gradient_norm, other.gradient_norm);
    }
    all.loss /= static_cast<double>(sums.labelled);
    return all;
  }

  void step() {
    const std::int64_t step = result_.step + 1;
    const auto begin = Clock::now();
    const TokenBatch batch = job_.windows->training_batch(step);
    const StepSums sums = trainer_->step(batch_of(batch, step), options_.trace, batch.cu_seqlens);
    const StepWord all = gather(sums);
    if (!std::isfinite(all.loss))
      throw CheckFailure(
          str("the loss of step ", step, " is ", all.loss, "; a smaller learning_rate than ",
              job_.learning_rate.peak, ", a longer warm-up or gradients in f32 may help",
              saved_ > 0 ? str("; ", checkpoint_name(saved_), " in ", job_.save, " is from before") : ""));
    result_.step = step, result_.losses.push_back(all.loss);
    const double seconds = seconds_since(begin);
    tell({Kind::step, step, all.loss, all.gradient_norm, job_.learning_rate.at(step), seconds,
          static_cast<double>(job_.request.workload.tokens()) / seconds, ""});
    result_.stopped = all.stops > 0 && step < job_.steps;
    const auto due = [&](std::int64_t every) { return every > 0 && step % every == 0; };
    if (due(job_.evaluate_every) && !result_.stopped) evaluate();
    if (due(job_.save_every)) save();
  }

  // Chosen: enough for a mean that differs little from that of all.
  static constexpr std::int64_t kMostEvaluationBatches = 8;

  void evaluate() {
    if (job_.windows->evaluation_windows() == 0) return;
    const auto begin = Clock::now();
    const std::int64_t batches = std::min(kMostEvaluationBatches, job_.windows->evaluation_batches());
    double loss = 0;
    for (std::int64_t number = 0; number < batches; ++number) {
      const TokenBatch batch = job_.windows->evaluation_batch(number);
      const StepSums sums =
          trainer_->evaluate(batch_of(batch, result_.step + 1), options_.trace, batch.cu_seqlens);
      loss += gather(sums).loss / static_cast<double>(batches);
    }
    evaluated_ = result_.step, result_.evaluation = loss;
    tell({Kind::evaluated, result_.step, loss, 0, 0, seconds_since(begin), 0, ""});
  }

  // ---- checkpoints ----

  void save() {
    if (job_.save.empty()) return;
    const auto begin = Clock::now();
    const std::string folder = str(job_.save, "/", checkpoint_name(result_.step));
    const CheckpointFacts facts = job_.facts(result_.step);
    // An error of one rank is told to all: none may wait for it.
    const auto together = [&](const char* name, const auto& work) {
      std::string finding;
      try {
        work();
      } catch (const InvalidInput& error) {
        finding = error.what();
      }
      for (const std::string& other : options_.gather(name, finding)) {
        if (!other.empty()) throw InvalidInput(str("step ", result_.step, " cannot be saved: ", other));
      }
    };
    if (removal_.valid()) removal_.get();
    together("save begins", [&] {
      if (rank_ == 0) CheckpointWriter::begin(folder, facts, names_, job_.config, options_.on_phase);
    });
    together("saved a part", [&] {
      CheckpointWriter writer(folder, facts, names_, options_.on_phase);
      write_to(writer);
      writer.finish(rank_);
    });
    together("saved", [&] {
      if (rank_ != 0) return;
      CheckpointWriter::commit(folder, facts, names_, job_.world(), options_.on_phase);
      // Beside the next steps: nobody waits for it.
      removal_ = std::async(std::launch::async, [this, step = result_.step] {
        remove_old_checkpoints(job_.save, job_.keep, step, options_.on_phase);
      });
    });
    saved_ = result_.step;
    tell({Kind::saved, result_.step, 0, 0, 0, seconds_since(begin), 0, folder});
  }

  void write_to(CheckpointWriter& writer) const {
    const FirstHolder first(job_.request, rank_);
    const StepBuffers& buffers = trainer_->buffers();
    for (const int stage : buffers.stages()) {
      buffers.for_each_owned(stage, [&](const StepBuffers::Owned& owned) {
        if (!first.is_first(owned.unit, owned.run.block)) return;
        const auto elements = [&](const void* data, DType dtype) {
          return std::span(static_cast<const std::byte*>(data), idx(owned.run.count * size_bytes(dtype)));
        };
        writer.write(0, owned.run, elements(owned.parameters, DType::f32));
        for (std::size_t state = 0; state < owned.states.size(); ++state)
          writer.write(static_cast<int>(state) + 1, owned.run,
                       elements(owned.states[state], owned.state_dtype));
      });
    }
  }

  const TrainJob& job_;
  const TrainingOptions& options_;
  Device& device_;
  const Rank rank_;
  const DiskNames names_;  // empty if no file is written or read
  // Buffers are filled when they are first bound, in the first step.
  std::optional<CheckpointReader> checkpoint_;
  std::optional<PretrainedReader> pretrained_;
  std::optional<Trainer> trainer_;
  TrainingResult result_;
  std::int64_t evaluated_ = -1, saved_ = 0;
  std::future<void> removal_;  // of old checkpoints, on rank 0; last: it uses the above
};

}  // namespace

TrainingResult run_training(const TrainJob& job, Device& device, const TrainingOptions& options) {
  return TrainingRun(job, device, options).run();
}

}  // namespace cp::sim
