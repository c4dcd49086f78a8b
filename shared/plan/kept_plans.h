// KeptPlans: what a device has made ready, by PreparedId. Every device that keeps plans has one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/device.h"

namespace cp {

// `Prepared` is the device's own type; this owns them, and they stay where they are. Place 0 is that of
// prepare(), and may be empty as any other.
template <class Prepared>
class KeptPlans {
 public:
  std::unique_ptr<Prepared>& first() { return places_.front(); }

  // Puts it into the first free place behind that of prepare(), and returns its id.
  PreparedId add(std::unique_ptr<Prepared> made) {
    const auto free = std::find(places_.begin() + 1, places_.end(), nullptr);
    const auto id = static_cast<PreparedId>(free - places_.begin());
    if (free == places_.end()) {
      places_.push_back(std::move(made));
    } else {
      *free = std::move(made);
    }
    return id;
  }

  // Throws InvalidInput if there is none of that id.
  Prepared& at(PreparedId id) const {
    Prepared* const found = find(id);
    if (found == nullptr) {
      throw InvalidInput(str("the device keeps no plan ", id,
                             "; it was released, or the device has failed; prepare the plan again"));
    }
    return *found;
  }
  // nullptr if there is none.
  Prepared* find(PreparedId id) const {
    const auto place = static_cast<std::size_t>(id);
    return place < places_.size() ? places_[place].get() : nullptr;
  }

  void remove(PreparedId id) { places_[static_cast<std::size_t>(id)].reset(); }
  // Forgets all, behind an error.
  void clear() { *this = {}; }

  template <class F>
  void for_each(const F& f) {
    for (const auto& place : places_) {
      if (place != nullptr) f(*place);
    }
  }
  // Of those in the lane that add() put there.
  template <class F>
  void for_each_in(LaneId lane, const F& f) {
    for (std::size_t i = 1; i < places_.size(); ++i) {
      if (places_[i] != nullptr && places_[i]->lane == lane) f(*places_[i]);
    }
  }

 private:
  std::vector<std::unique_ptr<Prepared>> places_ = one_empty();
  static std::vector<std::unique_ptr<Prepared>> one_empty() {
    std::vector<std::unique_ptr<Prepared>> places;
    places.emplace_back();
    return places;
  }
};

}  // namespace cp
