"""What should a machine do on paper? Catalogue, exact matching, derivation of peaks, views, detection."""

from mansard.hardware.catalogue import Entry as Entry
from mansard.hardware.catalogue import entries as entries
from mansard.hardware.catalogue import load as load
from mansard.hardware.catalogue import read_file as read_file
from mansard.hardware.derive import derive_peak as derive_peak
from mansard.hardware.derive import partial_ceilings as partial_ceilings
from mansard.hardware.derive import peak_rows as peak_rows
from mansard.hardware.derive import what_ratios_say as what_ratios_say
from mansard.hardware.matching import Match as Match
from mansard.hardware.matching import match as match
from mansard.hardware.on_paper import ceilings as ceilings
from mansard.hardware.records import Sku as Sku
