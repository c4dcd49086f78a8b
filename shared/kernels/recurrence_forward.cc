// The state of a head goes through its rows one by one. What a state needs of memory (64 KiB of 128 x 128)
// stays in a second-level cache, and all loops over it are of neighbouring values.
#include <algorithm>
#include <cmath>

#include "shared/kernels/kernels.h"
#include "shared/kernels/recurrence_rows.h"
#include "shared/kernels/recurrence_state.h"

namespace cp {
namespace {

// Chosen: 64 rows of 128 values take 32 KiB.
constexpr std::int64_t kRowsOfBlock = 64;

// Calls visit(batch, key head) for each of a [batch, rows, key_heads, key_dim] view.
template <class Visit>
void for_each_key_head(const View& keys, const Visit& visit) {
  for (std::int64_t batch = 0; batch < keys.shape[0]; ++batch) {
    for (std::int64_t head = 0; head < keys.shape[2]; ++head) visit(batch, head);
  }
}
std::int64_t value_heads_of_each(const View& keys, const View& values) {
  return values.shape[2] / std::max<std::int64_t>(1, keys.shape[2]);
}

// The values of k, v, log_decay and beta of some rows.
class InputRows {
 public:
  InputRows(const View& k, const View& v, const View& log_decay, const View& beta, const HostMemory& memory,
            std::int64_t iteration, std::int64_t batch, std::int64_t key_head, std::int64_t each)
      : k_(k, memory, iteration, batch, key_head, 1, kRowsOfBlock),
        v_(v, memory, iteration, batch, key_head * each, each, kRowsOfBlock),
        log_decay_(as_rows_of_one(log_decay), memory, iteration, batch, key_head * each, each, kRowsOfBlock),
        beta_(as_rows_of_one(beta), memory, iteration, batch, key_head * each, each, kRowsOfBlock) {}

  std::int64_t size() const { return k_.size(); }
  void load(std::int64_t begin, std::int64_t count) {
    k_.load(begin, count), v_.load(begin, count), log_decay_.load(begin, count), beta_.load(begin, count);
  }
  RecurrenceRow at(std::int64_t row, std::int64_t head) const {
    return {k_.at(row), v_.at(row, head), *log_decay_.at(row, head), *beta_.at(row, head)};
  }

 private:
  LoadedRows k_, v_, log_decay_, beta_;
};

// Calls visit(begin, count) for blocks of rows, from the first on or from the last.
template <class Visit>
void for_each_block(std::int64_t rows, bool backward, const Visit& visit) {
  const std::int64_t blocks = (rows + kRowsOfBlock - 1) / kRowsOfBlock;
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t begin = (backward ? blocks - 1 - i : i) * kRowsOfBlock;
    visit(begin, std::min(kRowsOfBlock, rows - begin));
  }
}

}  // namespace

void run(const RecurrenceForward& kernel, const HostMemory& memory, std::int64_t iteration) {
  const std::int64_t each = value_heads_of_each(kernel.k, kernel.v);
  const StateSize size{kernel.k.shape[3], kernel.v.shape[3]};
  Floats w(std::max<std::int64_t>(1, size.values));
  for_each_key_head(kernel.k, [&](std::int64_t batch, std::int64_t head) {
    InputRows rows(kernel.k, kernel.v, kernel.log_decay, kernel.beta, memory, iteration, batch, head, each);
    LoadedRows q(kernel.q, memory, iteration, batch, head, 1, kRowsOfBlock);
    LoadedRows out(kernel.out, memory, iteration, batch, head * each, each, kRowsOfBlock);
    HeadStates states(each, size);
    if (!is_absent(kernel.state)) states.load(kernel.state, memory, iteration, batch, head * each);
    auto start = kernel.starts.begin();
    for_each_block(rows.size(), false, [&](std::int64_t begin, std::int64_t count) {
      rows.load(begin, count), q.load(begin, count);
      for (std::int64_t row = 0; row < count; ++row) {
        if (start != kernel.starts.end() && *start == begin + row) states.clear(), ++start;
        for (std::int64_t h = 0; h < each; ++h) {
          apply_row(kernel.rule, rows.at(row, h), size, states.of(h), w.data());
          float* const result = out.at(row, h);
          times_state(q.at(row), states.of(h), size, result);
          for (std::int64_t j = 0; j < size.values; ++j) result[j] *= static_cast<float>(kernel.scale);
        }
      }
      out.store(begin, count);
    });
    if (!is_absent(kernel.final_state))
      states.store(kernel.final_state, memory, iteration, batch, head * each);
  });
}

void run(const RecurrenceSummary& kernel, const HostMemory& memory, std::int64_t iteration) {
  const std::int64_t each = value_heads_of_each(kernel.k, kernel.v);
  const StateSize size{kernel.k.shape[3], kernel.v.shape[3]};
  const bool has_transition = !is_absent(kernel.transition);
  const bool matrix = has_transition && kernel.rule == RecurrenceRule::delta;
  // T goes through the rows as a state does that begins with ones on its diagonal and is written nothing to.
  const StateSize square{matrix ? size.keys : 1, matrix ? size.keys : 1};
  Floats w(std::max<std::int64_t>({1, size.values, square.values}));
  for_each_key_head(kernel.k, [&](std::int64_t batch, std::int64_t head) {
    InputRows rows(kernel.k, kernel.v, kernel.log_decay, kernel.beta, memory, iteration, batch, head, each);
    HeadStates states(each, size), transitions(each, square);
    std::vector<double> decays(static_cast<std::size_t>(each));
    for (std::int64_t h = 0; h < each; ++h) {
      for (std::int64_t i = 0; i < square.keys; ++i) transitions.of(h)[i * square.values + i] = 1;
    }
    for_each_block(rows.size(), false, [&](std::int64_t begin, std::int64_t count) {
      rows.load(begin, count);
      for (std::int64_t row = 0; row < count; ++row) {
        for (std::int64_t h = 0; h < each; ++h) {
          RecurrenceRow values = rows.at(row, h);
          apply_row(kernel.rule, values, size, states.of(h), w.data());
          decays[static_cast<std::size_t>(h)] += static_cast<double>(values.log_decay);
          values.v = nullptr;
          if (matrix) apply_row(kernel.rule, values, square, transitions.of(h), w.data());
        }
      }
    });
    states.store(kernel.state, memory, iteration, batch, head * each);
    if (!has_transition) return;
    for (std::int64_t h = 0; h < each && !matrix; ++h)
      *transitions.of(h) = static_cast<float>(std::exp(decays[static_cast<std::size_t>(h)]));
    transitions.store(kernel.transition, memory, iteration, batch, head * each);
  });
}

void run(const RecurrenceSummaryGradient& kernel, const HostMemory& memory, std::int64_t iteration) {
  const std::int64_t each = value_heads_of_each(kernel.k, kernel.dout);
  const StateSize size{kernel.k.shape[3], kernel.dout.shape[3]};
  Floats dw(std::max<std::int64_t>(1, size.values));
  for_each_key_head(kernel.k, [&](std::int64_t batch, std::int64_t head) {
    // dout stands where v would.
    InputRows rows(kernel.k, kernel.dout, kernel.log_decay, kernel.beta, memory, iteration, batch, head,
                   each);
    LoadedRows q(kernel.q, memory, iteration, batch, head, 1, kRowsOfBlock);
    HeadStates dstates(each, size);
    for_each_block(rows.size(), true, [&](std::int64_t begin, std::int64_t count) {
      rows.load(begin, count), q.load(begin, count);
      for (std::int64_t row = count - 1; row >= 0; --row) {
        for (std::int64_t h = 0; h < each; ++h) {
          const RecurrenceRow values = rows.at(row, h);
          float* const dstate = dstates.of(h);
          add_outer(dstate, q.at(row), values.v, size, static_cast<float>(kernel.scale));
          gradient_of_written(values, size, dstate, dw.data());
          end_row_backward(kernel.rule, values, size, dstate, dw.data());
          scale_state(dstate, size, std::exp(values.log_decay));
        }
      }
    });
    dstates.store(kernel.dstate, memory, iteration, batch, head * each);
  });
}

void run(const RecurrenceJoin& kernel, const HostMemory& memory, std::int64_t iteration) {
  const Shape &shape = kernel.out.shape, &by = kernel.transition.shape;
  const auto at = [&](const View& view) { return reinterpret_cast<float*>(memory.at(view, iteration)); };
  const float *const transitions = at(kernel.transition), *const in = at(kernel.in);
  float* const out = at(kernel.out);
  const auto step = [](const View& view, std::size_t dim) { return view.strides[dim]; };
  const std::size_t row = kernel.transposed ? 3 : 2, column = kernel.transposed ? 2 : 3;
  std::vector<float> sums(static_cast<std::size_t>(shape[3]));
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t h = 0; h < shape[1]; ++h) {
      const float* const t = transitions + b * step(kernel.transition, 0) + h * step(kernel.transition, 1);
      const float* const x = in + b * step(kernel.in, 0) + h * step(kernel.in, 1);
      float* const y = out + b * step(kernel.out, 0) + h * step(kernel.out, 1);
      for (std::int64_t i = 0; i < shape[2]; ++i) {
        std::fill(sums.begin(), sums.end(), 0.0F);
        // A number acts as a diagonal of it does.
        const std::int64_t first = by[2] == 1 ? i : 0, last = by[2] == 1 ? i + 1 : shape[2];
        for (std::int64_t k = first; k < last; ++k) {
          const float factor =
              by[2] == 1 ? *t : t[i * step(kernel.transition, row) + k * step(kernel.transition, column)];
          const float* const from = x + k * step(kernel.in, 2);
          for (std::int64_t j = 0; j < shape[3]; ++j)
            sums[static_cast<std::size_t>(j)] += factor * from[j * step(kernel.in, 3)];
        }
        float* const to = y + i * step(kernel.out, 2);
        for (std::int64_t j = 0; j < shape[3]; ++j) {
          float& value = to[j * step(kernel.out, 3)];
          value = (kernel.accumulate ? value : 0) + sums[static_cast<std::size_t>(j)];
        }
      }
    }
  }
}

}  // namespace cp
