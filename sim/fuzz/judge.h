// Judging a case: everything that must hold of it, checked.
//
// What always is: it is not refused, plans of all ranks pass check(), memory and bytes are what the planner
// declares, index sets are what the splits say (sim/proof/exhaustive/index_oracle.h), and where the tensors
// are small enough the plans run on the fabric and every result is that of one device. What a case's `laws`
// add is listed by laws_of(): metamorphic laws, gradients, searches, round trips of texts, times.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/plan/trace.h"
#include "traces/fuzz_case.pb.h"

namespace cp::sim {

struct Judgement {
  std::optional<proto::Finding> finding;  // the first thing that does not hold
  // Of plans, traces, results that are exact in every world, and the property that does not hold: equal in
  // every process, with every compiler.
  Digest digest;
  bool ran = false;  // with data
};

// Throws InvalidInput for what is no case: texts that cannot be read, requests that the rules do not allow,
// laws that nobody knows.
Judgement judge(const proto::FuzzCase& fuzz_case);

// The laws that a case of this kind may ask for.
std::span<const std::string_view> laws_of(proto::FuzzCase::JobCase job);

// What breaks a property.
class PropertyFailure : public std::runtime_error {
 public:
  explicit PropertyFailure(proto::Finding finding)
      : runtime_error(finding.message()), finding_(std::move(finding)) {}
  const proto::Finding& finding() const { return finding_; }

 private:
  proto::Finding finding_;
};

// What a judge of one kind of case works with.
class Trial {
 public:
  explicit Trial(const proto::FuzzCase& fuzz_case) : case_(fuzz_case) {}

  const proto::FuzzCase& fuzz_case() const { return case_; }
  // Whether the case asks for the law; one that names none asks for all.
  bool asks(std::string_view law) const;

  // Runs f; an error in it is that the property does not hold. Broken invariants abort, as everywhere.
  template <class F>
  decltype(auto) property(std::string_view name, const F& f) const {
    try {
      return f();
    } catch (const PropertyFailure&) {
      throw;
    } catch (const Error& error) {
      throw failure(name, error.what());
    } catch (const std::exception& error) {
      throw failure(name, str("an unexpected exception: ", error.what()));
    }
  }
  template <class... Words>
  void require(bool holds, std::string_view property, const Words&... words) const {
    if (!holds) throw failure(property, str(words...));
  }
  PropertyFailure failure(std::string_view property, std::string message) const;

  Hasher& hasher() { return hasher_; }
  void ran() { ran_ = true; }
  bool has_run() const { return ran_; }

 private:
  const proto::FuzzCase& case_;
  Hasher hasher_;
  bool ran_ = false;
};

// What was observed, stream by stream, and the digests of exact results: equal whatever the order of the
// ranks and of their streams.
void add_traces(const std::vector<RankTrace>& traces, Hasher& hasher);

// By kind, each in a file of its own. Throw PropertyFailure, and InvalidInput as judge() does.
void judge_redistribution(const proto::Redistribute& job, Trial& trial);
void judge_attention(const proto::Attention& job, Trial& trial);
void judge_model(const proto::ModelStep& job, Trial& trial);
void judge_flows(const proto::Flows& job, Trial& trial);
void judge_program(const proto::Program& job, Trial& trial);

}  // namespace cp::sim
