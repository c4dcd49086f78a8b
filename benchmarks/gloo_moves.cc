// Redistributions by a Job, for scripts/compare_pytorch_gloo.py, which starts this program on every rank and
// asks each for one move after the other, so that it can time PyTorch's in between.
//
//   cprun --nproc-per-node 4 -- gloo_moves DIRECTORY
//
// Each rank reads lines "MESH SHAPE FROM TO REPETITIONS" ("a=2,b=2 4096x1024 S(0),P(sum) R,S(1) 10") from the
// pipe DIRECTORY/ask.RANK until it ends, and answers each on DIRECTORY/answer.RANK with "SECONDS CHECKSUM":
// of one repetition in the mean, after a barrier; and of the result's values, so that both sides can be seen
// to do the same.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/job.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/placement/layout.h"

namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::int64_t> numbers(std::string text, char separator) {
  for (char& c : text) c = c == separator ? ' ' : c;
  std::istringstream words(text);
  std::vector<std::int64_t> all;
  for (std::int64_t number = 0; words >> number;) all.push_back(number);
  return all;
}

cp::Mesh mesh_of(std::string text) {
  std::vector<cp::MeshAxis> axes;
  for (char& c : text) c = c == ',' ? ' ' : c;
  std::istringstream words(text);
  for (std::string word; words >> word;)
    axes.push_back({word.substr(0, word.find('=')), std::stoi(word.substr(word.find('=') + 1))});
  return cp::Mesh(axes);
}

// Shards and contributions differ between ranks, copies do not; small integers, so that every sum is exact.
void fill(const cp::Layout& layout, cp::Rank rank, std::vector<float>& values) {
  std::int64_t own = 0;
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
    if (!std::holds_alternative<cp::Replicate>(layout.placements[axis]))
      own = own * 8 + layout.mesh.coordinate(rank, static_cast<int>(axis)) + 1;
  }
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((static_cast<std::int64_t>(i) * 7 + own * 13) % 64);
}

double checksum(const std::vector<float>& values) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    sum += static_cast<double>(values[i]) * static_cast<double>(i % 251 + 1);
  return sum;
}

std::vector<float> memory_for(const cp::Layout& layout, cp::Rank rank) {
  return std::vector<float>(static_cast<std::size_t>(cp::local_numel(layout, rank)));
}

std::string run(cp::runtime::Job& job, const std::string& line, std::int64_t number) {
  std::istringstream words(line);
  std::string mesh_text, shape_text, from_text, to_text;
  int repetitions = 0;
  words >> mesh_text >> shape_text >> from_text >> to_text >> repetitions;
  const cp::Mesh mesh = mesh_of(mesh_text);
  const cp::Shape shape = numbers(shape_text, 'x');
  const cp::Layout from = cp::parse_layout(from_text, mesh, shape, cp::DType::f32),
                   to = cp::parse_layout(to_text, mesh, shape, cp::DType::f32);
  std::vector<float> in = memory_for(from, job.rank()), out = memory_for(to, job.rank());
  fill(from, job.rank(), in);
  const auto bytes = [](const std::vector<float>& data) {
    return static_cast<std::int64_t>(4 * data.size());
  };
  const cp::DTensor source = cp::from_local(from, job.rank(), in.data(), bytes(in)),
                    target = cp::from_local(to, job.rank(), out.data(), bytes(out));
  job.redistribute(source, target);  // plans, connects and allocates
  job.barrier(cp::str("move ", number));
  const auto begin = Clock::now();
  for (int i = 0; i < repetitions; ++i) job.redistribute(source, target);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count() / repetitions;
  char text[80];
  std::snprintf(text, sizeof text, "%.9f %.0f\n", seconds, checksum(out));
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw cp::InvalidInput("usage: cprun --nproc-per-node N -- gloo_moves DIRECTORY");
    cp::runtime::Job job;
    const std::string directory = argv[1], rank = std::to_string(job.rank());
    std::ifstream ask(directory + "/ask." + rank);
    std::ofstream answer(directory + "/answer." + rank);
    std::int64_t number = 0;
    for (std::string line; std::getline(ask, line);) answer << run(job, line, number++) << std::flush;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_moves: %s\n", error.what());
    return 1;
  }
}
