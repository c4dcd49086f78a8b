#include "tests/emulated_gpu/streams.h"

#include <utility>

namespace cp::emulated {

void Record::complete() {
  const std::lock_guard lock(mutex_);
  done_ = true;
  time_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}

bool Record::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void Record::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_; });
}

Record::Time Record::time() const {
  const std::lock_guard lock(mutex_);
  return time_;
}

Stream::Stream(int device, unsigned flags, int priority, Run run)
    : device_(device), flags_(flags), priority_(priority), run_(std::move(run)), thread_([this] {
        run_entries();
      }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    has_entries_.notify_one();
  }
  thread_.join();
}

std::shared_ptr<Capture> Stream::capture() const {
  const std::lock_guard lock(mutex_);
  return capture_;
}

void Stream::set_capture(std::shared_ptr<Capture> capture) {
  const std::lock_guard lock(mutex_);
  capture_ = std::move(capture);
}

void Stream::push(Entry entry) {
  const std::lock_guard lock(mutex_);
  entries_.push_back(std::move(entry));
  has_entries_.notify_one();
}

void Stream::push(Work work, bool vital) { push(Entry{std::move(work), nullptr, nullptr, vital}); }

std::shared_ptr<Record> Stream::record() {
  auto record = std::make_shared<Record>();
  push(Entry{{}, nullptr, record, false});
  return record;
}

void Stream::wait_for(std::shared_ptr<const Record> record) {
  if (!record->done()) push(Entry{{}, std::move(record), nullptr, false});
}

bool Stream::idle() const {
  const std::lock_guard lock(mutex_);
  return entries_.empty() && !running_;
}

void Stream::finish() {
  if (!idle()) record()->wait();
}

void Stream::run_entries() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_entries_.wait(lock, [&] { return !entries_.empty() || closing_; });
    if (entries_.empty()) return;
    const Entry entry = std::move(entries_.front());
    entries_.pop_front();
    running_ = true;
    lock.unlock();
    if (entry.awaits) entry.awaits->wait();
    if (entry.work) run_(entry.work, entry.vital);
    lock.lock();
    running_ = false;
    // Under the lock, so that who saw the record done finds the stream idle.
    if (entry.completes) entry.completes->complete();
  }
}

}  // namespace cp::emulated
