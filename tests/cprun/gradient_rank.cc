// A rank that splits and gathers a sequence and takes the gradients back, by the Job of a program: rings and
// Ulysses, packed documents of any sizes, every scale. Says what is wrong. With OTHER_SCALE, rank 1 scales
// differently. Run by cprun in the tests.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "runtime/job.h"
#include "runtime/launcher/exit_code.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/context_parallel/sequence.h"

namespace {

using cp::Layout;
using cp::Rank;

// The numbers of the whole tensor's rows that the rank holds, times the factor; the tensor has one dimension.
std::vector<float> numbered(const Layout& layout, Rank rank, double factor) {
  std::vector<float> values;
  for (const cp::Run& run : cp::indices(layout, 0, rank)) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      for (std::int64_t j = 0; j < run.run; ++j)
        values.push_back(
            static_cast<float>(factor * static_cast<double>(run.begin + i * run.stride + j + 1)));
    }
  }
  return values;
}

cp::DTensor tensor_of(const Layout& layout, Rank rank, std::vector<float>& values) {
  return cp::from_local(layout, rank, values.data(),
                        static_cast<std::int64_t>(values.size() * sizeof(float)));
}

// The factor, the product and what is expected are rounded to f32, once each.
bool is_near(const std::vector<float>& got, const std::vector<float>& expected) {
  if (got.size() != expected.size()) return false;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double wanted = static_cast<double>(expected[i]);
    if (!(std::abs(static_cast<double>(got[i]) - wanted) <= 0x1.80001p-23 * std::abs(wanted))) return false;
  }
  return true;
}

// Twice by one plan, between other buffers each time.
void check(cp::runtime::Job& job, const cp::SequenceMove& move, const cp::GradientOptions& options,
           const char* what) {
  const Rank rank = job.rank();
  std::size_t plans = 0;
  for (const double first : {1.0, 64.0}) {
    std::vector<float> in = numbered(move.from, rank, first), out(numbered(move.to, rank, 0));
    job.redistribute(tensor_of(move.from, rank, in), tensor_of(move.to, rank, out));
    if (out != numbered(move.to, rank, first)) std::printf("%s: other values\n", what);
    std::vector<float> dout = numbered(move.to, rank, first), din(in.size(), -1);
    job.redistribute_backward(move.from, move.to, tensor_of(move.to, rank, dout),
                              tensor_of(move.from, rank, din), options);
    if (!is_near(din, numbered(move.from, rank, first * options.scale)))
      std::printf("%s: another gradient\n", what);
    // Both are enqueued before either has ended; the second reads what the first has written.
    out.assign(out.size(), -1), din.assign(din.size(), -1);
    const cp::PlanRun there =
        job.start_redistribute(tensor_of(move.from, rank, in), tensor_of(move.to, rank, out));
    job.start_redistribute_backward(move.from, move.to, tensor_of(move.to, rank, out),
                                    tensor_of(move.from, rank, din), options)
        .wait();
    if (!there.has_ended() || out != numbered(move.to, rank, first)) std::printf("%s: not moved\n", what);
    if (!is_near(din, numbered(move.from, rank, first * options.scale)))
      std::printf("%s: another gradient behind it\n", what);
    if (first != 1 && job.plans().size() != plans) std::printf("%s: the plans are made again\n", what);
    plans = job.plans().size();
  }
}

void run() {
  cp::runtime::Job job;
  const cp::Mesh mesh = cp::Mesh::parse("ring=2,ulysses=2");
  const cp::SequenceAxes axes{"ring", "ulysses"};
  const Layout whole = cp::parse_layout("R,R", mesh, {13}, cp::DType::f32);
  const std::vector<std::vector<std::int64_t>> sizes = {{3, 0, 4}, {1, 5, 0}};
  for (const cp::GradScale scale : {cp::GradScale::down, cp::GradScale::up, cp::GradScale::none}) {
    const bool differs = std::getenv("OTHER_SCALE") != nullptr && job.rank() == 1;
    const auto options = [&](const cp::SequenceMove& move) {
      cp::GradientOptions result = cp::gradient_options(move);
      if (differs) result.scale *= 2;
      return result;
    };
    for (const cp::Split& ring : {cp::Split(cp::HeadTail{}), cp::Split(cp::packed_sizes(sizes))}) {
      const cp::SequenceMove in = cp::split_ring_then_ulysses(whole, axes, 0, ring, scale);
      check(job, in, options(in), "split");
      const cp::SequenceMove out = cp::gather_ulysses_then_ring(in.to, axes, scale);
      check(job, out, options(out), "gather");
    }
  }
}

}  // namespace

int main() {
  try {
    run();
    return 0;
  } catch (const cp::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return cp::runtime::exit_code(error.kind());
  }
}
