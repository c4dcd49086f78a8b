// cpsim fuzz: cases drawn from a seed and judged, on as many processes as there are cores, until one fails or
// the time is over.
//
//   corpus     all of its cases first, in the order of their names; then cases that are drawn
//   workers    processes, so that a case that aborts, crashes or never ends is a finding too; worker w of n
//              takes cases w, w+n, ...
//   again      one case in twenty is judged twice: another digest is a finding ("determinism")
//   coverage   a case that is the first in a cell of the table feature x feature enters the corpus
//   failure    the first one ends the run: it is shrunk, and written with what was found
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/fuzz/draw.h"
#include "sim/fuzz/features.h"

namespace cp::sim {

struct FuzzOptions {
  FuzzTarget target = FuzzTarget::all;
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> cases;        // drawn ones; unset: until the time is over
  std::optional<std::chrono::seconds> time;  // unset, without cases too: a minute
  std::chrono::seconds shrink_time{60};
  std::chrono::seconds case_limit{120};  // of one case: what takes longer is taken to never end
  std::vector<std::string>
      corpus;                  // folders; new cases go into the last one, which is made where it is missing
  std::string failures = ".";  // folder of failure-<digest>.txtpb
  int jobs = 1;
  const std::atomic<bool>* stop = nullptr;  // ends the run, or the shrinking, with what there is
};

struct FuzzStatus {
  std::string phase;  // "corpus", "cases", "shrinking"
  std::uint64_t cases = 0;
  double seconds = 0;
  std::size_t covered = 0, cells = 0;  // of the table
  std::uint64_t failures = 0;
  std::string shrinking;  // how large the case is now
};

struct FuzzFailure {
  proto::FuzzCase fuzz_case;  // shrunk, with what was found
  std::string path;           // where it was written
  std::string drawn_as;       // "case 4711 of seed 3", or the file of the corpus
  double found_after_s = 0;
  std::uint64_t found_after_cases = 0;
};

struct FuzzResult {
  FuzzStatus status;
  std::optional<FuzzFailure> failure;
  std::size_t corpus_cases = 0;   // that were run
  std::size_t new_in_corpus = 0;  // that were written
  bool stopped = false;           // by `stop`
};

// To be called while the process has one thread: it forks. `on_status` is called by it a few times a second.
// Throws InvalidInput for folders that cannot be read or written, and for a file of the corpus that is no
// case.
FuzzResult fuzz(const FuzzOptions& options, const std::function<void(const FuzzStatus&)>& on_status);

// "failure-<digest>.txtpb" in the folder. Throws InvalidInput when it cannot be written.
std::string write_case_in(const std::string& folder, const std::string& prefix,
                          const proto::FuzzCase& fuzz_case);

// "4 ranks, 3 collectives": how large a case is, for people.
std::string size_text(const proto::FuzzCase& fuzz_case);

}  // namespace cp::sim
