// Plans each pair of layouts of a list, and says in JSON what the plan moves, what it holds and how long
// planning took; scripts/compare_pytorch compares that with PyTorch's planners.
//
//   plan_pairs [--objective time|bytes] [--repeat N] [--lower] < PAIRS > RESULTS
//
// A line of PAIRS has six fields with tabs between them: a name, the mesh, the shape, the dtype and the
// placements of both sides, such as "gather<TAB>dp=2,tp=4<TAB>64x32<TAB>f32<TAB>S(0),R<TAB>R,R". A line of
// RESULTS is an object with that name and either "error" or the figures; the first line that cannot be read
// ends the program with 2.
//
// Times are CPU microseconds of one plan: the median of N (default 5), fewer where a second passes first.
// What else runs on the machine changes them little. With --lower, writing down rank 0's plan counts, too.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "shared/base/error.h"
#include "shared/placement/layout.h"
#include "shared/redistribute/lower.h"
#include "shared/redistribute/redistribution.h"

namespace {

struct Arguments {
  cp::RedistributeOptions options;
  int repeat = 5;
  bool lowers = false;
};

double cpu_microseconds() {
  std::timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

Arguments parse_arguments(std::vector<std::string_view> words) {
  Arguments arguments;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view value = i + 1 < words.size() ? words[i + 1] : std::string_view{};
    if (words[i] == "--lower") {
      arguments.lowers = true;
    } else if (words[i] == "--objective" && (value == "time" || value == "bytes")) {
      arguments.options.objective = value == "time" ? cp::Objective::time : cp::Objective::bytes;
      ++i;
    } else if (words[i] == "--repeat" && std::atoi(value.data()) > 0) {
      arguments.repeat = std::atoi(value.data());
      ++i;
    } else {
      throw cp::InvalidInput(cp::str("plan_pairs: cannot read '", words[i], " ", value,
                                     "'; use [--objective time|bytes] [--repeat N] [--lower] < PAIRS"));
    }
  }
  return arguments;
}

std::vector<std::string> split_tabs(const std::string& line) {
  std::vector<std::string> fields(1);
  for (const char c : line) {
    if (c == '\t') {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

cp::Shape parse_shape(const std::string& text) {
  cp::Shape shape(1, 0);
  for (const char c : text) {
    if (c == 'x') {
      shape.push_back(0);
    } else {
      shape.back() = shape.back() * 10 + (c - '0');
    }
  }
  return shape;
}

struct TimedPlan {
  cp::Redistribution plan;
  double microseconds = 0;
};

TimedPlan plan_once(const cp::Layout& from, const cp::Layout& to, const Arguments& arguments) {
  const double begin = cpu_microseconds();
  cp::Redistribution plan = cp::plan_redistribution(from, to, arguments.options);
  if (arguments.lowers) cp::lower(plan, 0);
  return {std::move(plan), cpu_microseconds() - begin};
}

nlohmann::json steps_of(const cp::Redistribution& plan) {
  nlohmann::json steps = nlohmann::json::array();
  for (const cp::RedistributionStep& step : plan.steps) {
    steps.push_back(cp::str(cp::name(step.move.kind), " ", cp::placements_to_string(step.move.from), " -> ",
                            cp::placements_to_string(step.move.to)));
  }
  return steps;
}

nlohmann::json plan_pair(const std::vector<std::string>& fields, const Arguments& arguments) {
  nlohmann::json result = {{"name", fields[0]}};
  try {
    const cp::Mesh mesh = cp::Mesh::parse(fields[1]);
    const cp::Shape shape = parse_shape(fields[2]);
    const cp::DType dtype = cp::parse_dtype(fields[3]);
    const cp::Layout from = cp::parse_layout(fields[4], mesh, shape, dtype);
    const cp::Layout to = cp::parse_layout(fields[5], mesh, shape, dtype);
    const auto [plan, first] = plan_once(from, to, arguments);  // warms up
    std::vector<double> times;
    double sum = first;
    do {
      times.push_back(plan_once(from, to, arguments).microseconds);
      sum += times.back();
    } while (static_cast<int>(times.size()) < arguments.repeat && sum < 1e6);
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                     times.end());
    std::int64_t wire = 0;
    for (const cp::RedistributionStep& step : plan.steps) wire += step.wire_bytes_received_total;
    result["payload_max"] = plan.bytes_received_max;
    result["payload_total"] = plan.bytes_received_total;
    result["wire_total"] = wire;
    result["peak"] = plan.peak_bytes;
    result["modelled_us"] = plan.time_us;
    result["plan_us"] = times[times.size() / 2];
    result["steps"] = steps_of(plan);
  } catch (const std::exception& error) {
    result["error"] = error.what();
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse_arguments({argv + 1, argv + argc});
    std::string line;
    while (std::getline(std::cin, line)) {
      const std::vector<std::string> fields = split_tabs(line);
      if (fields.size() != 6) {
        throw cp::InvalidInput(
            cp::str("plan_pairs: '", line, "' has ", fields.size(),
                    " fields; write NAME, MESH, SHAPE, DTYPE, FROM and TO with tabs between them"));
      }
      std::cout << plan_pair(fields, arguments).dump() << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
