"""The `run` and `diagnose` JSON document, under the name by which views know it; `diagnose.document` makes and reads it."""

from mansard.diagnose.document import SCHEMAS as SCHEMAS
from mansard.diagnose.document import from_document as from_document
from mansard.diagnose.document import to_document as to_document
