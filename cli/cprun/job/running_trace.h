// A rank's trace, written while its plans run: whatever happens to the rank, what it did until shortly before
// is in the file.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "shared/plan/trace.h"
#include "traces/trace_files.h"

namespace cp::cli {

// While a pass runs, a thread writes each kPeriod what came since: a pass that is shorter is written when it
// ends. A collective costs its stream no more than a copy of its record.
class RunningTrace {
 public:
  static constexpr std::chrono::milliseconds kPeriod{100};

  // Throws BadTrace when the file cannot be written; so do the functions below, of any write before them.
  explicit RunningTrace(const std::string& path);
  ~RunningTrace();
  RunningTrace(const RunningTrace&) = delete;
  RunningTrace& operator=(const RunningTrace&) = delete;

  void append(const RankTrace& part);  // at once; between passes

  // `pass` has its rank and its clock; the rest comes as it happens, and its `issued` stays as it is from
  // issued() to end_pass().
  void begin_pass(const RankTrace& pass);
  void issued();
  // As it ends, in the order of its stream; for any thread, and of no effect outside of passes.
  void observed(const OpRecord& record);
  // The whole pass, or what there was of it when it failed: what is not in the file yet goes there.
  void end_pass();

  void finish();  // the end record

 private:
  void run();
  void write_new();  // with write_mutex_
  std::vector<OpRecord> not_written(const std::vector<OpRecord>& observed);

  std::mutex write_mutex_;  // of the file, and of what follows; taken before the other
  TraceFileWriter file_;
  std::exception_ptr error_;
  bool issued_written_ = false;
  std::map<StreamId, std::size_t> observed_written_;
  RankTrace head_;  // the pass's rank and clock

  std::mutex mutex_;  // of the below
  std::condition_variable wake_;
  const RankTrace* pass_ = nullptr;
  bool is_issued_ = false, stopping_ = false;
  std::vector<OpRecord> observed_;  // that are not written
  std::thread thread_;              // last: uses the above
};

}  // namespace cp::cli
