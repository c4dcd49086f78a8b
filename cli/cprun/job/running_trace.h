// Writes a rank's trace while its plans run. Whatever happens to the rank, the file has what it did until
// shortly before.
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

// A thread of this object writes, each kPeriod while a pass runs, the records that came since. A pass shorter
// than kPeriod is written when it ends. A collective costs its stream no more than the copy of one record.
class RunningTrace {
 public:
  // Chosen: about this much of a trace is lost if the rank is killed; and ten writes a second should not
  // disturb the measured times (estimated).
  static constexpr std::chrono::milliseconds kPeriod{100};

  // Opens the file. This and the functions below throw BadTrace if the file cannot be written; end_pass()
  // also throws the error of an earlier write by the thread.
  explicit RunningTrace(const std::string& path);
  ~RunningTrace();
  RunningTrace(const RunningTrace&) = delete;
  RunningTrace& operator=(const RunningTrace&) = delete;

  // Writes the part at once. To be called only between passes.
  void append(const RankTrace& part);

  // Begins a pass. `pass` must have its rank and its clock, and must live until end_pass(); everything else
  // in it comes while the pass runs. From issued() to end_pass() its `issued` must not change.
  void begin_pass(const RankTrace& pass);
  void issued();
  // Takes the record of a collective that has ended. Any thread may call it; the collectives of one stream
  // must come in their order. Outside of passes it has no effect.
  void observed(const OpRecord& record);
  // Ends the pass and writes what is not in the file yet: the whole pass, or what there was of it when it
  // failed.
  void end_pass();

  void finish();  // writes the record that ends the file

 private:
  void run();
  void write_new();  // the caller holds write_mutex_
  std::vector<OpRecord> not_written(const std::vector<OpRecord>& observed);

  // Protects the file and the members up to head_. A thread that needs both mutexes takes this one first.
  std::mutex write_mutex_;
  TraceFileWriter file_;
  std::exception_ptr error_;
  bool issued_written_ = false;
  std::map<StreamId, std::size_t> observed_written_;
  RankTrace head_;  // the pass's rank and clock

  std::mutex mutex_;  // protects the members below
  std::condition_variable wake_;
  const RankTrace* pass_ = nullptr;
  bool is_issued_ = false, stopping_ = false;
  std::vector<OpRecord> observed_;  // not yet in the file
  std::thread thread_;              // declared last, because it uses all of the above
};

}  // namespace cp::cli
