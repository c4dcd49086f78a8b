// Runs a recurrent layer by the host kernels, its sequence cut into chunks: the states between them go
// through a scan, as on several ranks, but all is written here by hand and runs in one memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "shared/plan/recurrence_rules.h"
#include "sim/proof/run/recurrence_test_data.h"
#include "tests/kernels/kernel_memory.h"

namespace cp::testing {

struct RecurrenceResults {
  std::vector<double> out, dq, dk, dv, dlog_decay, dbeta;
};

class ChunkedRecurrence {
 public:
  // From chunk to chunk, or Hillis and Steele's pairs, which join transitions too.
  enum class Scan : std::uint8_t { sequential, doubling };

  // `begins` are the first rows of the chunks: 0 first, ascending.
  ChunkedRecurrence(const sim::RecurrenceTestData& data, const std::vector<std::int64_t>& begins, Scan scan)
      : p_(data.problem()), scan_(scan) {
    const Shape keys = {p_.batch, p_.seq_len, p_.key_heads, p_.key_dim},
                values = {p_.batch, p_.seq_len, p_.value_heads, p_.value_dim},
                numbers = {p_.batch, p_.seq_len, p_.value_heads};
    q_ = add(keys, p_.dtype, data.q()), k_ = add(keys, p_.dtype, data.k());
    v_ = add(values, p_.dtype, data.v()), dout_ = add(values, p_.dtype, data.dout());
    log_decay_ = add(numbers, DType::f32, data.log_decay()), beta_ = add(numbers, DType::f32, data.beta());
    out_ = add(values, p_.dtype), dv_ = add(values, p_.dtype);
    dq_ = add(keys, p_.dtype), dk_ = add(keys, p_.dtype);
    dlog_decay_ = add(numbers, DType::f32), dbeta_ = add(numbers, DType::f32);
    const std::vector<std::int64_t> documents = p_.document_starts();
    for (std::size_t c = 0; c < begins.size(); ++c) {
      Chunk chunk{begins[c], c + 1 < begins.size() ? begins[c + 1] : p_.seq_len, {}, {}, {}, {}};
      for (const std::int64_t start : documents) {
        if (start > chunk.begin && start < chunk.end) chunk.starts.push_back(start - chunk.begin);
        chunk.is_first = chunk.is_first || start == chunk.begin;
      }
      chunks_.push_back(chunk);
    }
  }

  // Leaves out what comes in to this chunk, forward or backward, as if it were lost.
  void lose_state(std::size_t chunk) { lost_state_ = static_cast<std::int64_t>(chunk); }
  void lose_gradient(std::size_t chunk) { lost_gradient_ = static_cast<std::int64_t>(chunk); }

  RecurrenceResults run() {
    forward();
    backward();
    return {values(out_), values(dq_), values(dk_), values(dv_), values(dlog_decay_), values(dbeta_)};
  }

 private:
  struct Chunk {
    std::int64_t begin, end;
    std::vector<std::int64_t> starts;
    View state;       // behind it: of its own rows, and after the scan of all before it too
    View transition;  // where it hands on what comes in
    View gradient;    // of the state before it: of its own rows, and after the scan of all behind it too
    bool is_first = false;  // of a document

    bool hands_on() const { return !is_first && starts.empty(); }
  };

  View add(const Shape& shape, DType dtype, const std::vector<double>& values = {}) {
    View view = dense_view(0, 0, shape);
    view.buffer = memory_.add(
        dtype, values.empty() ? std::vector<double>(static_cast<std::size_t>(view.numel()), 96) : values);
    return view;
  }
  std::vector<double> values(const View& view) const { return memory_.values(view.buffer); }
  View new_state() { return add({p_.batch, p_.value_heads, p_.key_dim, p_.value_dim}, DType::f32); }
  View new_transition() {
    const std::int64_t n = p_.transition_dim();
    return add({p_.batch, p_.value_heads, n, n}, DType::f32);
  }
  static View rows(View view, std::int64_t begin, std::int64_t end) {
    view.offset += begin * view.strides[1];
    view.shape[1] = end - begin;
    return view;
  }

  void forward() {
    for (Chunk& chunk : chunks_) {
      chunk.state = new_state();
      if (chunk.hands_on()) chunk.transition = new_transition();
      const std::int64_t begin = chunk.begin + (chunk.starts.empty() ? 0 : chunk.starts.back());
      const auto tail = [&](const View& view) { return rows(view, begin, chunk.end); };
      memory_.run(RecurrenceSummary{tail(k_), tail(v_), tail(log_decay_), tail(beta_), chunk.state,
                                    chunk.transition, p_.rule});
    }
    std::vector<Part> parts;
    for (const Chunk& chunk : chunks_) parts.push_back({chunk.state, chunk.transition});
    join_all(parts, false);
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      const auto own = [&](const View& view) { return rows(view, chunks_[c].begin, chunks_[c].end); };
      memory_.run(RecurrenceForward{own(q_), own(k_), own(v_), own(log_decay_), own(beta_), before(c),
                                    own(out_), chunks_[c].starts, p_.output_scale(), p_.rule});
    }
  }

  void backward() {
    std::vector<Part> parts;  // from the last chunk to the first
    for (std::size_t c = chunks_.size(); c-- > 0;) {
      Chunk& chunk = chunks_[c];
      chunk.gradient = new_state();
      const std::int64_t end = chunk.starts.empty() ? chunk.end : chunk.begin + chunk.starts.front();
      const auto head = [&](const View& view) { return rows(view, chunk.begin, end); };
      memory_.run(RecurrenceSummaryGradient{head(q_), head(k_), head(log_decay_), head(beta_), head(dout_),
                                            chunk.gradient, p_.output_scale(), p_.rule});
      parts.push_back({chunk.gradient, chunk.transition, ends_document(c)});
    }
    join_all(parts, true);
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      const std::int64_t begin = chunks_[c].begin, end = chunks_[c].end;
      const auto own = [&](const View& view) { return rows(view, begin, end); };
      const View workspace = add(
          {recurrence_workspace_numel(end - begin, p_.value_heads / p_.key_heads, p_.key_dim, p_.value_dim)},
          DType::f32);
      memory_.run(RecurrenceBackward{own(q_), own(k_), own(v_), own(log_decay_), own(beta_), before(c),
                                     own(dout_), behind(c), own(dq_), own(dk_), own(dv_), own(dlog_decay_),
                                     own(dbeta_), workspace, chunks_[c].starts, p_.output_scale(), p_.rule});
    }
  }

  // The state that comes in to a chunk.
  View before(std::size_t c) const {
    if (chunks_[c].is_first || lost_state_ == static_cast<std::int64_t>(c)) return {};
    return chunks_[c - 1].state;
  }

  // The gradient that comes in to it.
  View behind(std::size_t c) const {
    if (ends_document(c) || lost_gradient_ == static_cast<std::int64_t>(c)) return {};
    return chunks_[c + 1].gradient;
  }
  bool ends_document(std::size_t c) const { return c + 1 == chunks_.size() || chunks_[c + 1].is_first; }

  // What chunks make of a state or of its gradient, in the order in which it meets them. The transition is
  // absent where nothing goes through.
  struct Part {
    View state, transition;
    bool ends = false;  // nothing comes in, though the chunk has a transition

    bool passes() const { return !is_absent(transition) && !ends; }
  };

  // Adds to each part's state what comes in to it, sent through its transition.
  void join_all(std::vector<Part>& parts, bool is_backward) {
    const auto join = [&](const Part& part, const View& in) {
      memory_.run(RecurrenceJoin{part.transition, in, part.state, true, is_backward});
    };
    if (scan_ == Scan::sequential) {
      for (std::size_t p = 1; p < parts.size(); ++p) {
        if (parts[p].passes()) join(parts[p], parts[p - 1].state);
      }
      return;
    }
    for (std::size_t distance = 1; distance < parts.size(); distance *= 2) {
      // From the last on, so that nobody meets a part that is joined already.
      for (std::size_t p = parts.size() - 1; p >= distance; --p) {
        Part &here = parts[p], &there = parts[p - distance];
        if (!here.passes()) continue;
        join(here, there.state);
        View joined;
        if (there.passes()) {
          joined = new_transition();
          memory_.run(RecurrenceJoin{is_backward ? there.transition : here.transition,
                                     is_backward ? here.transition : there.transition, joined, false, false});
        }
        here.transition = joined;
      }
    }
  }

  const RecurrenceProblem p_;
  const Scan scan_;
  KernelMemory memory_;
  View q_, k_, v_, log_decay_, beta_, dout_, out_, dq_, dk_, dv_, dlog_decay_, dbeta_;
  std::vector<Chunk> chunks_;
  std::int64_t lost_state_ = -1, lost_gradient_ = -1;
};

}  // namespace cp::testing
