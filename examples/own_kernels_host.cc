#include <algorithm>
#include <cstddef>
#include <list>

#include "examples/own_kernels.h"

namespace {

class HostKernels : public OwnKernels {
 public:
  float* allocate(std::int64_t count) override {
    return memory_.emplace_back(static_cast<std::size_t>(count)).data();
  }
  void upload(float* to, const std::vector<float>& from) override { std::copy(from.begin(), from.end(), to); }
  std::vector<float> download(const float* from, std::int64_t count) override { return {from, from + count}; }

  cp::CallerStream stream() const override { return nullptr; }
  void before_own_work(const cp::PlanRun& run) override { run.wait(); }

  void gradient_of_loss(const float* out, const float* want, float* dout, float* errors,
                        std::int64_t count) override {
    for (std::int64_t i = 0; i < count; ++i) dout[i] = errors[i] = out[i] - want[i];
  }
  void descend(float* x, const float* gradient, float rate, std::int64_t count) override {
    for (std::int64_t i = 0; i < count; ++i) x[i] -= rate * gradient[i];
  }

 private:
  std::list<std::vector<float>> memory_;
};

}  // namespace

std::unique_ptr<OwnKernels> own_kernels_of_host() { return std::make_unique<HostKernels>(); }
