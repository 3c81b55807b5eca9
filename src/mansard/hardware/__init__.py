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
from mansard.hardware.slices import tpu_slice as tpu_slice
from mansard.hardware.views import bytes_in_flight as bytes_in_flight
from mansard.hardware.views import fixed_cost_s as fixed_cost_s
from mansard.hardware.views import gemm_ridge_size as gemm_ridge_size
from mansard.hardware.views import hiding_gemm_size as hiding_gemm_size
from mansard.hardware.views import hiding_work as hiding_work
from mansard.hardware.views import in_flight_bytes_per_s as in_flight_bytes_per_s
from mansard.hardware.views import mixed_peak_flop_per_s as mixed_peak_flop_per_s
from mansard.hardware.views import pebble_flop_per_byte as pebble_flop_per_byte
from mansard.hardware.views import ridge_flop_per_byte as ridge_flop_per_byte
from mansard.hardware.views import ridge_points as ridge_points
from mansard.hardware.views import square_gemm_flop_per_byte as square_gemm_flop_per_byte
from mansard.hardware.views import transfers_in_flight as transfers_in_flight
