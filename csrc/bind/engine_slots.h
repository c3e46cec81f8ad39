// The Python-side objects that stand on a slot.
#pragma once

#include "bind/engine_common.h"

namespace adaspark::bind {

struct PyTarget {
    std::shared_ptr<Slot> slot;
    Target & get() const { return slot->get(); }
};

struct PyDrafter {
    std::shared_ptr<Slot> slot;
    Drafter * drafter = nullptr; // valid while it is the slot's

    Drafter & get() const {
        slot->get();
        if (slot->drafter.get() != drafter) {
            throw BackendError("this drafter is closed. Load it again");
        }
        return *drafter;
    }
    ~PyDrafter() {
        if (slot && slot->drafter.get() == drafter) {
            slot->drafter.reset();
        }
    }
};

} // namespace adaspark::bind
