// cpsim fuzz draws cases from a seed and judges them in several processes, until one fails or the time is
// over.
//
//   corpus     all cases of the corpus come first, in the order of their names, and then the drawn ones
//   workers    each is a process, so that a case that aborts, crashes or never ends is a finding too; worker
//              w of n takes the cases w, w+n, ...
//   again      a worker judges every 20th of its cases twice; another digest is a finding ("determinism")
//   coverage   a case that is the first in a cell of the table feature x feature enters the corpus
//   failure    the first one ends the run: it is shrunk, and written together with what was found
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
  std::optional<std::uint64_t> cases;        // how many are drawn; unset: as many as the time allows
  std::optional<std::chrono::seconds> time;  // unset: no limit if `cases` is set, else a minute
  std::chrono::seconds shrink_time{60};      // chosen: as long as a default run
  // Of one case: what takes longer is taken to never end. Chosen: ten thousand times what a
  // case takes in the mean (draw.cc).
  std::chrono::seconds case_limit{120};
  std::vector<std::string>
      corpus;                  // folders; new cases go into the last one, which is made where it is missing
  std::string failures = ".";  // folder of failure-<digest>.txtpb
  int jobs = 1;
  const std::atomic<bool>* stop = nullptr;  // if set, ends the run, or the shrinking, with what there is
};

struct FuzzStatus {
  std::string phase;  // "corpus", "cases", "shrinking"
  std::uint64_t cases = 0;
  double seconds = 0;
  std::size_t covered = 0, cells = 0;  // of the table of features (features.h)
  std::uint64_t failures = 0;
  std::string shrinking;  // how large the case is now
};

struct FuzzFailure {
  proto::FuzzCase fuzz_case;  // the shrunk case, with what was found
  std::string path;           // where it was written
  std::string drawn_as;       // "case 4711 of seed 3", or the file of the corpus
  double found_after_s = 0;
  std::uint64_t found_after_cases = 0;
};

struct FuzzResult {
  FuzzStatus status;
  std::optional<FuzzFailure> failure;
  std::size_t corpus_cases = 0;   // how many of them were run
  std::size_t new_in_corpus = 0;  // how many were written
  bool stopped = false;           // whether `stop` ended it
};

// Runs the fuzzer. Call it while the process has one thread, because it forks. It calls `on_status` on the
// caller's thread a few times a second. Throws InvalidInput for folders that cannot be read or written, and
// for a file of the corpus that is no case.
FuzzResult fuzz(const FuzzOptions& options, const std::function<void(const FuzzStatus&)>& on_status);

// Writes the case into the folder, which is made if it is missing, as <prefix>-<digest>.txtpb, and returns
// this path. Throws InvalidInput if it cannot be written.
std::string write_case_in(const std::string& folder, const std::string& prefix,
                          const proto::FuzzCase& fuzz_case);

// Says how large a case is, for people: "4 ranks, 16x8 elements".
std::string size_text(const proto::FuzzCase& fuzz_case);

}  // namespace cp::sim
