// Judges a case: checks everything that must hold of it.
//
// What always must hold: the case is not refused; the plans of all ranks pass check(); memory and bytes are
// what the planner declares; index sets are what the splits say (sim/proof/exhaustive/index_oracle.h); and if
// the tensors are small enough, the plans run on the fabric and every result is that of one device. A case
// may ask for `laws` on top of that, which laws_of() lists: metamorphic laws, gradients, searches, round
// trips of texts, times.
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
  // A digest of plans, traces, results that are exact in every world, and the property that does not hold. It
  // is equal in every process and with every compiler.
  Digest digest;
  bool ran = false;  // whether it ran with data
};

// Judges a case of any kind. What does not hold is returned, not thrown. Throws InvalidInput for what is no
// case: texts that cannot be read, requests that the rules do not allow, laws that nobody knows.
Judgement judge(const proto::FuzzCase& fuzz_case);

// The laws that a case of this kind may ask for.
std::span<const std::string_view> laws_of(proto::FuzzCase::JobCase job);

// Thrown inside a judge when a property does not hold. judge() turns it into Judgement::finding.
class PropertyFailure : public std::runtime_error {
 public:
  explicit PropertyFailure(proto::Finding finding)
      : runtime_error(finding.message()), finding_(std::move(finding)) {}
  const proto::Finding& finding() const { return finding_; }

 private:
  proto::Finding finding_;
};

// What a judge of one kind of case works with: the case, and what has come of it so far.
class Trial {
 public:
  explicit Trial(const proto::FuzzCase& fuzz_case) : case_(fuzz_case) {}

  const proto::FuzzCase& fuzz_case() const { return case_; }
  // Whether the case asks for the law. A case that names no law asks for all.
  bool asks(std::string_view law) const;

  // Runs f and returns its result. If f throws an error, the property does not hold, and PropertyFailure is
  // thrown. A broken invariant aborts the process, as everywhere.
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
  // Throws PropertyFailure with the words, joined, unless `holds`.
  template <class... Words>
  void require(bool holds, std::string_view property, const Words&... words) const {
    if (!holds) throw failure(property, str(words...));
  }
  PropertyFailure failure(std::string_view property, std::string message) const;

  Hasher& hasher() { return hasher_; }  // what goes into Judgement::digest
  void ran() { ran_ = true; }           // to be called once plans have run with data
  bool has_run() const { return ran_; }

 private:
  const proto::FuzzCase& case_;
  Hasher hasher_;
  bool ran_ = false;
};

// Adds what was observed, stream by stream, and the digests of exact results. They are equal whatever the
// order of the ranks and of their streams.
void add_traces(const std::vector<RankTrace>& traces, Hasher& hasher);

// The judges of each kind of case, each in a file of its own. They throw PropertyFailure, and InvalidInput as
// judge() does.
void judge_redistribution(const proto::Redistribute& job, Trial& trial);
void judge_attention(const proto::Attention& job, Trial& trial);
void judge_recurrence(const proto::Recurrence& job, Trial& trial);
void judge_model(const proto::ModelStep& job, Trial& trial);
void judge_proof(const proto::Proof& job, Trial& trial);
void judge_flows(const proto::Flows& job, Trial& trial);
void judge_program(const proto::Program& job, Trial& trial);

}  // namespace cp::sim
