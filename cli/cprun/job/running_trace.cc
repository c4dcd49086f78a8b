#include "cli/cprun/job/running_trace.h"

#include <utility>

namespace cp::cli {

RunningTrace::RunningTrace(const std::string& path) : file_(path), thread_([this] { run(); }) {}

RunningTrace::~RunningTrace() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void RunningTrace::append(const RankTrace& part) {
  const std::lock_guard lock(write_mutex_);
  file_.append(part);
}

void RunningTrace::begin_pass(const RankTrace& pass) {
  const std::lock_guard write_lock(write_mutex_);
  issued_written_ = false;
  observed_written_.clear();
  head_.rank = pass.rank, head_.clock_offset_ns = pass.clock_offset_ns;
  const std::lock_guard lock(mutex_);
  pass_ = &pass;
  is_issued_ = false;
  observed_.clear();
  wake_.notify_all();
}

void RunningTrace::issued() {
  const std::lock_guard lock(mutex_);
  is_issued_ = true;
}

void RunningTrace::observed(const OpRecord& record) {
  const std::lock_guard lock(mutex_);
  if (pass_ != nullptr) observed_.push_back(record);
}

void RunningTrace::end_pass() {
  const std::lock_guard write_lock(write_mutex_);
  const RankTrace* pass = nullptr;
  {
    const std::lock_guard lock(mutex_);
    pass = std::exchange(pass_, nullptr);
    observed_.clear();  // end_pass() writes them from the whole pass instead
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  if (pass == nullptr) return;
  RankTrace rest = head_;
  if (!issued_written_) rest.issued = pass->issued;
  rest.observed = not_written(pass->observed);
  rest.issued_times = pass->issued_times, rest.observed_times = pass->observed_times;
  rest.digests = pass->digests;
  file_.append(rest);
}

// In the file, the records of each stream stand in the stream's order, beginning with its first. So it is
// enough to know how many of each stream have been written.
std::vector<OpRecord> RunningTrace::not_written(const std::vector<OpRecord>& observed) {
  std::vector<OpRecord> rest;
  for (const OpRecord& record : observed) {
    std::size_t& written = observed_written_[record.stream];
    if (written > 0) {
      --written;
    } else {
      rest.push_back(record);
    }
  }
  return rest;
}

void RunningTrace::finish() {
  const std::lock_guard lock(write_mutex_);
  file_.finish();
}

void RunningTrace::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (pass_ == nullptr) {
      wake_.wait(lock, [&] { return stopping_ || pass_ != nullptr; });
      continue;
    }
    if (wake_.wait_for(lock, kPeriod, [&] { return stopping_; })) return;
    lock.unlock();
    {
      const std::lock_guard write_lock(write_mutex_);
      if (!error_) write_new();
    }
    lock.lock();
  }
}

void RunningTrace::write_new() {
  RankTrace part = head_;
  bool writes_issued = false;
  {
    const std::lock_guard lock(mutex_);
    if (pass_ == nullptr) return;  // its end has written all
    part.observed = std::exchange(observed_, {});
    writes_issued = is_issued_ && !issued_written_;
    if (writes_issued) part.issued = pass_->issued;
  }
  if (part.issued.empty() && part.observed.empty()) return;
  try {
    file_.append(part);
  } catch (...) {
    error_ = std::current_exception();
    return;
  }
  issued_written_ |= writes_issued;
  for (const OpRecord& record : part.observed) ++observed_written_[record.stream];
}

}  // namespace cp::cli
