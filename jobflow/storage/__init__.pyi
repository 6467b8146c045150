from jobflow.storage.session_variables import get as get
from jobflow.storage.session_variables import save as save
