// The backward pass of a recurrence goes through the rows from the last to the first and needs the state
// before each. A first pass keeps the states at the begin of each block of rows; then each block's states are
// made anew, from the last block to the first (recurrence_rules.h says how long a block is, and how much
// workspace that takes).
#include <algorithm>
#include <cmath>

#include "shared/kernels/kernels.h"
#include "shared/kernels/recurrence_rows.h"
#include "shared/kernels/recurrence_state.h"
#include "shared/plan/recurrence_rules.h"

namespace cp {
namespace {

// One key head of one batch entry, with the value heads that share it.
class Lane {
 public:
  Lane(const RecurrenceBackward& kernel, const HostMemory& memory, std::int64_t iteration, std::int64_t batch,
       std::int64_t key_head)
      : kernel_(kernel),
        each_(kernel.v.shape[2] / kernel.k.shape[2]),
        size_{kernel.k.shape[3], kernel.v.shape[3]},
        rows_(kernel.k.shape[1]),
        block_(recurrence_block_rows(rows_)),
        states_(reinterpret_cast<float*>(memory.at(kernel.workspace, iteration))),
        kept_(states_ + block_ * each_ * size_.numel()),
        q_(keys(kernel.q, memory, iteration, batch, key_head)),
        k_(keys(kernel.k, memory, iteration, batch, key_head)),
        dq_(keys(kernel.dq, memory, iteration, batch, key_head)),
        dk_(keys(kernel.dk, memory, iteration, batch, key_head)),
        v_(values(kernel.v, memory, iteration, batch, key_head)),
        dout_(values(kernel.dout, memory, iteration, batch, key_head)),
        dv_(values(kernel.dv, memory, iteration, batch, key_head)),
        log_decay_(values(as_rows_of_one(kernel.log_decay), memory, iteration, batch, key_head)),
        beta_(values(as_rows_of_one(kernel.beta), memory, iteration, batch, key_head)),
        dlog_decay_(values(as_rows_of_one(kernel.dlog_decay), memory, iteration, batch, key_head)),
        dbeta_(values(as_rows_of_one(kernel.dbeta), memory, iteration, batch, key_head)),
        state_(each_, size_),
        dstate_(each_, size_),
        w_(size_.values),
        u_(size_.values),
        dw_(size_.values) {
    if (!is_absent(kernel.state)) state_.load(kernel.state, memory, iteration, batch, key_head * each_);
    if (!is_absent(kernel.dstate)) dstate_.load(kernel.dstate, memory, iteration, batch, key_head * each_);
  }

  void run() {
    const std::int64_t blocks = (rows_ + block_ - 1) / block_;
    for (std::int64_t b = 0; b < blocks; ++b) {
      std::copy_n(state_.of(0), each_ * size_.numel(), kept_ + b * each_ * size_.numel());
      if (b + 1 < blocks) through_block(b, false);
    }
    for (std::int64_t b = blocks - 1; b >= 0; --b) {
      std::copy_n(kept_ + b * each_ * size_.numel(), each_ * size_.numel(), state_.of(0));
      through_block(b, true);
      back_through_block(b);
    }
  }

 private:
  LoadedRows keys(const View& view, const HostMemory& memory, std::int64_t iteration, std::int64_t batch,
                  std::int64_t key_head) const {
    return {view, memory, iteration, batch, key_head, 1, block_};
  }
  LoadedRows values(const View& view, const HostMemory& memory, std::int64_t iteration, std::int64_t batch,
                    std::int64_t key_head) const {
    return {view, memory, iteration, batch, key_head * each_, each_, block_};
  }
  bool starts_at(std::int64_t row) const {
    return std::binary_search(kernel_.starts.begin(), kernel_.starts.end(), row);
  }
  RecurrenceRow row_of(std::int64_t row, std::int64_t h) const {
    return {k_.at(row), v_.at(row, h), *log_decay_.at(row, h), *beta_.at(row, h)};
  }
  float* before_row(std::int64_t row, std::int64_t h) const {
    return states_ + (row * each_ + h) * size_.numel();
  }

  // The states go through the rows of a block, and those before each row are kept.
  void through_block(std::int64_t block, bool keeps) {
    const std::int64_t begin = block * block_, count = std::min(block_, rows_ - begin);
    k_.load(begin, count), v_.load(begin, count), log_decay_.load(begin, count), beta_.load(begin, count);
    for (std::int64_t row = 0; row < count; ++row) {
      if (starts_at(begin + row)) state_.clear();
      if (keeps) std::copy_n(state_.of(0), each_ * size_.numel(), before_row(row, 0));
      for (std::int64_t h = 0; h < each_; ++h)
        apply_row(kernel_.rule, row_of(row, h), size_, state_.of(h), w_.data());
    }
  }

  void back_through_block(std::int64_t block) {
    const std::int64_t begin = block * block_, count = std::min(block_, rows_ - begin);
    q_.load(begin, count), dout_.load(begin, count);
    dq_.fill(0, count), dk_.fill(0, count);
    for (std::int64_t row = count - 1; row >= 0; --row) {
      for (std::int64_t h = 0; h < each_; ++h) back_through_row(row, h);
      if (starts_at(begin + row)) dstate_.clear();
    }
    dq_.store(begin, count), dk_.store(begin, count), dv_.store(begin, count);
    dlog_decay_.store(begin, count), dbeta_.store(begin, count);
  }

  void back_through_row(std::int64_t row, std::int64_t h) {
    const RecurrenceRow values = row_of(row, h);
    const float* const dout = dout_.at(row, h);
    const auto scale = static_cast<float>(kernel_.scale);
    float* const state = before_row(row, h);
    float* const dstate = dstate_.of(h);
    begin_row(kernel_.rule, values, size_, state, w_.data());  // P, and w
    for (std::int64_t j = 0; j < size_.values; ++j) u_.data()[j] = values.beta * w_.data()[j];
    // out = scale S'^T q with S' = P + k u^T, of which dq needs S' dout.
    add_state_times(state, dout, size_, scale, dq_.at(row));
    const float u_dout = scale * dot(u_.data(), dout);
    for (std::int64_t i = 0; i < size_.keys; ++i) dq_.at(row)[i] += u_dout * values.k[i];
    add_outer(dstate, q_.at(row), dout, size_, scale);
    add_state_times(dstate, u_.data(), size_, 1, dk_.at(row));
    gradient_of_written(values, size_, dstate, dw_.data());
    *dbeta_.at(row, h) = dot(dw_.data(), w_.data());
    end_row_backward(kernel_.rule, values, size_, dstate, dw_.data());
    if (kernel_.rule == RecurrenceRule::delta) add_state_times(state, dw_.data(), size_, -1, dk_.at(row));
    std::copy_n(dw_.data(), size_.values, dv_.at(row, h));
    float sum = 0;
    for (std::int64_t i = 0; i < size_.keys; ++i)
      sum += dot(dstate + i * size_.values, state + i * size_.values);
    *dlog_decay_.at(row, h) = sum;
    scale_state(dstate, size_, std::exp(values.log_decay));
  }
  float dot(const float* a, const float* b) const {
    float sum = 0;
    for (std::int64_t j = 0; j < size_.values; ++j) sum += a[j] * b[j];
    return sum;
  }

  const RecurrenceBackward& kernel_;
  const std::int64_t each_;
  const StateSize size_;
  const std::int64_t rows_, block_;
  float *const states_, *const kept_;  // before each row of a block; at the begin of each block
  LoadedRows q_, k_, dq_, dk_, v_, dout_, dv_, log_decay_, beta_, dlog_decay_, dbeta_;
  HeadStates state_, dstate_;  // the state that goes through the rows, and its gradient on the way back
  Floats w_, u_, dw_;
};

}  // namespace

void run(const RecurrenceBackward& kernel, const HostMemory& memory, std::int64_t iteration) {
  for (std::int64_t batch = 0; batch < kernel.k.shape[0]; ++batch) {
    for (std::int64_t head = 0; head < kernel.k.shape[2]; ++head)
      Lane(kernel, memory, iteration, batch, head).run();
  }
}

}  // namespace cp
