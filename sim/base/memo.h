// Memo keeps what has been found for each key, so that only those look for it who ask first.
#pragma once

#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

namespace cp::sim {

// Several threads may use one. Mostly they ask for what is known, and do not wait for one another then.
template <class Key, class Value>
class Memo {
 public:
  // What is known, or what `find` gives, which two threads may ask at once: it must give both the same. The
  // reference stays valid as long as this.
  template <class Find>
  const Value& of(const Key& key, const Find& find) {
    {
      const std::shared_lock lock(mutex_);
      if (const auto known = known_.find(key); known != known_.end()) return known->second;
    }
    Value found = find();
    const std::scoped_lock lock(mutex_);
    return known_.try_emplace(key, std::move(found)).first->second;
  }

 private:
  std::shared_mutex mutex_;
  std::map<Key, Value> known_;
};

}  // namespace cp::sim
