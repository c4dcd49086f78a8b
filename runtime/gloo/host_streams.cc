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
  changed_.notify_all();
  for (const auto& stream : streams_) stream->thread.join();
}

void HostStreams::require(std::size_t count) {
  const std::lock_guard lock(mutex_);
  while (streams_.size() < count) {
    Stream& stream = *streams_.emplace_back(std::make_unique<Stream>());
    stream.thread = std::thread([this, &stream] { run(stream); });
  }
}

void HostStreams::push(StreamId stream, Entry entry) {
  {
    const std::lock_guard lock(mutex_);
    streams_.at(static_cast<std::size_t>(stream))->entries.push_back(std::move(entry));
  }
  changed_.notify_all();
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
  changed_.wait(lock, [&] { return idle(); });
  if (error_) std::rethrow_exception(error_);
}

bool HostStreams::idle() const {
  return std::none_of(streams_.begin(), streams_.end(),
                      [](const auto& stream) { return stream->running || !stream->entries.empty(); });
}

bool HostStreams::done(EventId event) const { return !pending_events_.contains(event); }

void HostStreams::run(Stream& stream) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !stream.entries.empty(); });
    if (stopping_) return;
    const Entry entry = std::move(stream.entries.front());
    stream.entries.pop_front();
    stream.running = true;
    changed_.wait(lock, [&] { return stopping_ || error_ || done(entry.awaits); });
    if (!stopping_ && !error_ && entry.work) {
      lock.unlock();
      run_entry(entry);
      lock.lock();
    }
    pending_events_.erase(entry.completes);
    stream.running = false;
    changed_.notify_all();
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
    changed_.notify_all();
    on_error_();
  }
}

}  // namespace cp::runtime
