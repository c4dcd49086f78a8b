#include "runtime/latest_steps.h"

#include "shared/base/text.h"
#include "shared/plan/step_text.h"

namespace cp::runtime {

void LatestSteps::launched(StreamId stream, const Plan& plan, StepId step) {
  const auto at = static_cast<std::size_t>(stream);
  if (latest_.size() <= at) latest_.resize(at + 1);
  latest_[at] = {&plan, step};
}

void LatestSteps::forget(const Plan& plan) {
  for (Latest& latest : latest_) {
    if (latest.plan == &plan) latest = {};
  }
}

std::string LatestSteps::text() const {
  std::vector<std::string> texts;
  for (std::size_t stream = 0; stream < latest_.size(); ++stream) {
    if (latest_[stream].plan != nullptr)
      texts.push_back(str(step_text(*latest_[stream].plan, latest_[stream].step), " on stream ", stream));
  }
  return cp::join(texts, ", ");
}

}  // namespace cp::runtime
