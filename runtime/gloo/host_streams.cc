#include "runtime/gloo/host_streams.h"

#include <algorithm>
#include <utility>

namespace cp::runtime {

HostStreams::HostStreams(std::function<void()> on_error) : on_error_(std::move(on_error)) {}

HostStreams::~HostStreams() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& stream : streams_) stream->entries.clear();
  }
  event_.notify_all();
  for (const auto& stream : streams_) {
    stream->has_entries.notify_all();
    stream->thread.join();
  }
}

void HostStreams::require(std::size_t count) {
  const std::lock_guard lock(mutex_);
  while (streams_.size() < count) {
    Stream& stream = *streams_.emplace_back(std::make_unique<Stream>());
    stream.thread = std::thread([this, &stream] { run(stream); });
  }
}

void HostStreams::push(StreamId id, Entry entry) {
  Stream* stream = nullptr;
  {
    const std::lock_guard lock(mutex_);
    stream = streams_.at(static_cast<std::size_t>(id)).get();
    stream->entries.push_back(std::move(entry));
    ++unfinished_;
  }
  stream->has_entries.notify_one();
}

void HostStreams::enqueue(StreamId stream, Work work) { push(stream, {.work = std::move(work)}); }

EventId HostStreams::record(StreamId stream) {
  EventId event = 0;
  {
    const std::lock_guard lock(mutex_);
    event = next_event_++;
    pending_events_.insert(event);
  }
  push(stream, {.work = {}, .completes = event});
  return event;
}

void HostStreams::wait(StreamId stream, EventId event) { push(stream, {.work = {}, .awaits = event}); }

void HostStreams::synchronize() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return unfinished_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

bool HostStreams::done(EventId event) const { return !pending_events_.contains(event); }

void HostStreams::run(Stream& stream) {
  std::unique_lock lock(mutex_);
  while (true) {
    stream.has_entries.wait(lock, [&] { return stopping_ || !stream.entries.empty(); });
    if (stopping_) return;
    const Entry entry = std::move(stream.entries.front());
    stream.entries.pop_front();
    event_.wait(lock, [&] { return stopping_ || error_ || done(entry.awaits); });
    if (!stopping_ && !error_ && entry.work) {
      lock.unlock();
      run_entry(entry);
      lock.lock();
    }
    if (pending_events_.erase(entry.completes) > 0) event_.notify_all();
    if (--unfinished_ == 0) idle_.notify_all();
  }
}

void HostStreams::run_entry(const Entry& entry) {
  try {
    entry.work();
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      if (error_) return;
      error_ = std::current_exception();
    }
    event_.notify_all();
    on_error_();
  }
}

}  // namespace cp::runtime
