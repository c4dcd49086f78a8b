// The norm of gradients, and the step of an optimizer.
#include "shared/kernels/elements.h"
#include "shared/kernels/optimizer_step.h"
#include "shared/kernels/row_kernels.h"
#include "shared/kernels/row_views.h"
#include "shared/kernels/strided.h"

namespace cp {

void squared_norm(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const auto& rule = std::get<SquaredNormRule>(kernel.rule);
  double total = 0;
  for (std::size_t i = 0; i < kernel.reads.size(); ++i) {
    const View& view = kernel.reads[i];
    double sum = 0;
    with_floating_type(memory.dtype(view), [&]<class T>(std::type_identity<T>) {
      const T* values = reinterpret_cast<const T*>(memory.at(view, iteration));
      for_each_run(view, view,
                   [&](std::int64_t from, std::int64_t step, std::int64_t, std::int64_t, std::int64_t n) {
                     for (std::int64_t k = 0; k < n; ++k) {
                       const double value = load(values[from + k * step]);
                       sum += value * value;
                     }
                   });
    });
    total += sum / static_cast<double>(rule.copies[i]);
  }
  *statistic(kernel.writes[0], memory, iteration) = static_cast<float>(total);
}

void optimizer(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const auto& rule = std::get<OptimizerRule>(kernel.rule);
  const View &of_gradients = kernel.reads[0], &of_schedule = kernel.reads[2],
             &of_parameters = kernel.updates[0];
  const std::int64_t numel = of_gradients.numel();
  float* const schedule = statistic(of_schedule, memory, iteration);
  const OptimizerNumbers numbers =
      optimizer_numbers(rule, *statistic(kernel.reads[1], memory, iteration), at(schedule, of_schedule, 0),
                        at(schedule, of_schedule, 1));

  float* const parameters = statistic(of_parameters, memory, iteration);
  // States in a row of [states n], or a row of [states, n] each.
  const View* const of_states = rule.states > 0 ? &kernel.updates[1] : nullptr;
  const bool in_rows = of_states != nullptr && of_states->shape.size() == 2;
  const std::int64_t along = of_states == nullptr ? 0 : of_states->strides.back(),
                     between = in_rows ? of_states->strides[0] : numel * along;
  with_floating_type(memory.dtype(of_gradients), [&]<class G>(std::type_identity<G>) {
    const G* gradients = reinterpret_cast<const G*>(memory.at(of_gradients, iteration));
    const auto states_of = [&]<class S>(std::type_identity<S>) {
      S* states = of_states == nullptr ? nullptr : reinterpret_cast<S*>(memory.at(*of_states, iteration));
      for (std::int64_t i = 0; i < numel; ++i) {
        float& p = parameters[i * of_parameters.strides[0]];
        const float gradient = load(gradients[i * of_gradients.strides[0]]);
        if (rule.states == 2) {
          S &m = states[i * along], &v = states[i * along + between];
          float mean = load(m), square = load(v);
          adamw(numbers, gradient, p, mean, square);
          m = convert<S>(mean), v = convert<S>(square);
        } else if (rule.states == 1) {
          S& m = states[i * along];
          float mean = load(m);
          sgd(numbers, gradient, p, &mean);
          m = convert<S>(mean);
        } else {
          sgd<float>(numbers, gradient, p, nullptr);
        }
      }
    };
    if (of_states == nullptr) return states_of(std::type_identity<float>());
    with_floating_type(memory.dtype(*of_states), states_of);
  });
  if (kernel.writes.empty()) return;
  const View& computed = kernel.writes[0];
  with_floating_type(memory.dtype(computed), [&]<class T>(std::type_identity<T>) {
    T* to = reinterpret_cast<T*>(memory.at(computed, iteration));
    for (std::int64_t i = 0; i < numel; ++i)
      to[i * computed.strides[0]] = convert<T>(parameters[i * of_parameters.strides[0]]);
  });
}

}  // namespace cp
